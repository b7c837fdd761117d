//! What this host says of its memory: whether the kernel killed somebody for it, and whether a second worker fits.
//!
//! Owns the reading of `/proc` and the control group. Where they do not exist nothing is known, and nothing is claimed.

use std::fs;

/// Processes that the kernel has killed so far for want of memory, in our control group or else on the host.
pub(super) fn kills() -> Option<u64> {
    ["/sys/fs/cgroup/memory.events", "/proc/vmstat"].into_iter().find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        number_after(&text, "oom_kill ")
    })
}

/// Share of the free memory that a second copy may take: the rest is for growth.
const FREE_SHARE: f64 = 0.8;

/// Whether another process as large as `pid` fits beside it; true where the host does not say.
pub(super) fn has_room_for_another(pid: u32) -> bool {
    let resident = fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|text| number_after(&text, "VmRSS:"));
    let free = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| number_after(&text, "MemAvailable:"));
    fits(resident, free)
}

fn fits(resident_kib: Option<u64>, free_kib: Option<u64>) -> bool {
    match (resident_kib, free_kib) {
        (Some(resident), Some(free)) => (resident as f64) <= free as f64 * FREE_SHARE,
        _ => true,
    }
}

fn number_after(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_label() {
        let text = "low 0\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(number_after(text, "oom_kill "), Some(2));
        assert_eq!(number_after("VmRSS:\t   1234 kB\n", "VmRSS:"), Some(1234));
        assert_eq!(number_after(text, "swap "), None);
    }

    #[test]
    fn a_copy_must_leave_room_to_grow() {
        assert!(fits(Some(80), Some(100)));
        assert!(!fits(Some(81), Some(100)));
        assert!(fits(None, Some(1)), "nothing known, nothing refused");
    }
}
