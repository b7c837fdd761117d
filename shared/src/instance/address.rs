//! Sockets and URLs as written in an instance file.
//!
//! Refuses wildcard addresses unless they are allowed by name, an admin listener that others could reach,
//! ports that two listeners would fight over, and URLs that a request could not be sent to.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::Uri;

use super::node::{At, shorten};
use super::problem::Problems;

/// A listener's address; a host name is refused, because it may mean another address tomorrow.
pub(super) fn socket(
    text: &At<String>,
    name: &str,
    problems: &mut Problems,
) -> Option<At<SocketAddr>> {
    match text.value.parse::<SocketAddr>() {
        Ok(value) => Some(At { value, at: text.at }),
        Err(_) => {
            let word = shorten(&text.value);
            let meant =
                text.value.strip_prefix("localhost:").filter(|port| port.parse::<u16>().is_ok());
            let hint = match meant {
                Some(port) => format!(": write `127.0.0.1:{port}`"),
                None => ": write it like `127.0.0.1:8900` or `[::1]:8900`".to_owned(),
            };
            problems.add(text.at, format!("{name}: `{word}` is not an address and port{hint}"));
            None
        }
    }
}

/// Reports addresses of all interfaces, unless the file allows them.
pub(super) fn refuse_wildcards(listen: &[At<SocketAddr>], allowed: bool, problems: &mut Problems) {
    for address in listen.iter().filter(|address| !allowed && address.value.ip().is_unspecified()) {
        problems.add(
            address.at,
            format!(
                "`listen`: `{}` would open this instance to every network: name an address, or set `allow_wildcard: true`",
                address.value
            ),
        );
    }
}

/// Reports an admin listener that other machines could reach.
pub(super) fn require_loopback(admin: &At<SocketAddr>, problems: &mut Problems) {
    if !admin.value.ip().is_loopback() {
        problems.add(
            admin.at,
            format!(
                "`admin`: `{}` is not a loopback address: use `127.0.0.1` or `[::1]`",
                admin.value
            ),
        );
    }
}

/// A port that something will listen on, and how messages call that something.
pub(super) struct Claim {
    pub(super) address: At<SocketAddr>,
    pub(super) by: String,
}

impl Claim {
    /// A worker's claim to a port on loopback.
    pub(super) fn of_worker(port: &At<u16>, backend: &str) -> Self {
        let value = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.value);
        Self { address: At { value, at: port.at }, by: format!("worker of backend `{backend}`") }
    }

    fn clashes_with(&self, other: &Self) -> bool {
        let (a, b) = (self.address.value, other.address.value);
        let same_host = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
        a.port() != 0 && a.port() == b.port() && same_host
    }
}

/// Reports every claim to a port that an earlier one has taken.
pub(super) fn refuse_clashes(claims: &[Claim], problems: &mut Problems) {
    for (index, claim) in claims.iter().enumerate() {
        if let Some(first) = claims[..index].iter().find(|first| claim.clashes_with(first)) {
            let (port, line) = (claim.address.value.port(), first.address.at.line);
            problems.add(
                claim.address.at,
                format!(
                    "{}: port {port} is already taken by {} at line {line}",
                    claim.by, first.by
                ),
            );
        }
    }
}

/// A base URL to which `/chat/completions` can be added.
pub(super) fn base_url(text: &At<String>, name: &str, problems: &mut Problems) -> Option<Uri> {
    let refuse = |problems: &mut Problems, why: &str| {
        problems.add(text.at, format!("{name}: `{}` {why}", shorten(&text.value)));
        None
    };
    let Ok(url) = text.value.trim_end_matches('/').parse::<Uri>() else {
        return refuse(problems, "is not a URL");
    };
    let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return refuse(problems, "is not a URL: write it like `http://host:8000/v1`");
    };
    if scheme != "http" && scheme != "https" {
        return refuse(problems, "must start with `http://` or `https://`");
    }
    if authority.as_str().contains('@') {
        // Not repeated in the message: it may hold a password.
        problems.add(
            text.at,
            format!("{name}: a URL must not hold a user or password: use `api_key_env`"),
        );
        return None;
    }
    let has_port = authority.as_str().len() > authority.host().len();
    if authority.host().is_empty() || has_port && !matches!(authority.port_u16(), Some(1..)) {
        return refuse(problems, "has no usable host and port");
    }
    if url.query().is_some() || text.value.contains('#') {
        return refuse(problems, "must not hold a query or fragment");
    }
    if let Some(base) = url.path().strip_suffix("/chat/completions") {
        let hint = format!("is an endpoint, not a base URL: end it with `{base}`");
        return refuse(problems, &hint);
    }
    Some(url)
}
