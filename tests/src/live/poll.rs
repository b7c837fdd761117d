//! Waiting for a condition instead of for time.

use std::time::{Duration, Instant};

/// How long anything may take that has no deadline of its own: generous, because two cores carry several tests.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks again and again until `look` finds something; fails the test with what it saw last otherwise.
///
/// # Panics
/// If nothing is found within `limit`.
pub async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let begun = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if begun.elapsed() > limit => {
                panic!("{what} did not happen within {limit:?}; last seen: {seen}")
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
