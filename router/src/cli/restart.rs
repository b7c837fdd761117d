//! `sanctum restart`: replaces one worker and says which one answers now.

use std::io::{self, Write as _};

use http::Method;

use super::call::Caller;
use super::{CliError, Router, find};
use crate::supervise::Restarted;

pub(super) async fn run(router: &Router, backend: &str) -> Result<(), CliError> {
    let admin = find::admin_url(router.admin.as_deref(), &router.instance)?;
    let url = format!("{admin}/admin/backends/{backend}/restart");
    let body = Caller::new(None)?.fetch(Method::POST, &url, None).await?;
    let Restarted { pid, seamless } =
        serde_json::from_slice(&body).map_err(|source| CliError::Nonsense { url, source })?;
    let how = if seamless {
        "it was ready before the old worker was told to stop"
    } else {
        "requests went elsewhere meanwhile"
    };
    writeln!(io::stdout(), "{backend}: process {pid} answers now; {how}")?;
    Ok(())
}
