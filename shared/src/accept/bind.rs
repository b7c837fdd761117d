//! Binding a listener, with an error that says in one line what is wrong.
//!
//! Owns the socket options of listeners. It never tries another port than the one it was told.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::exit;

/// Connections that the kernel queues before we accept them.
const BACKLOG: u32 = 1024;

/// A listener that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody listens there.
    #[error("cannot listen on {address}: the port is taken by another process")]
    Taken {
        /// What was asked for.
        address: SocketAddr,
    },
    /// The port is privileged.
    #[error("cannot listen on {address}: ports below 1024 need privileges")]
    Denied {
        /// What was asked for.
        address: SocketAddr,
    },
    /// No interface of this host has the address.
    #[error("cannot listen on {address}: no interface of this host has that address")]
    NotHere {
        /// What was asked for.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen on {address}")]
    Other {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

impl BindError {
    /// The process's exit code for it: another start may succeed, so it is not a configuration error.
    pub fn exit_code(&self) -> u8 {
        exit::UNAVAILABLE
    }

    fn from_io(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::Taken { address },
            io::ErrorKind::PermissionDenied => Self::Denied { address },
            io::ErrorKind::AddrNotAvailable => Self::NotHere { address },
            _ => Self::Other { address, source },
        }
    }
}

/// Listens on `address`; port 0 lets the kernel choose one (see `local_addr`).
pub fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    let open = || -> io::Result<TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Without it a restart would wait for connections of the last run to be forgotten.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    open().map_err(|source| BindError::from_io(address, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_said_in_one_line() {
        let first = bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = first.local_addr().expect("bound");
        let refused = bind(address).expect_err("taken");
        assert_eq!(
            refused.to_string(),
            format!("cannot listen on {address}: the port is taken by another process")
        );
        assert_eq!(refused.exit_code(), 69);
    }

    #[tokio::test]
    async fn a_foreign_address_is_named() {
        // 192.0.2.0/24 is reserved for documentation: no host has it.
        let refused = bind("192.0.2.1:8900".parse().expect("an address")).expect_err("not ours");
        assert!(matches!(refused, BindError::NotHere { .. }), "{refused}");
    }
}
