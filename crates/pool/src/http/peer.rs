//! The client of a connection.

use axum::http::{HeaderMap, Uri, header};
use sconce_api::hosts::is_localhost;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Notify;

/// The client of a connection; an extension of each of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Whether it is on this machine.
    local: bool,
    hang_up: Arc<Notify>,
}

impl Peer {
    pub(crate) fn new(from: SocketAddr) -> Peer {
        Peer { local: from.ip().to_canonical().is_loopback(), hang_up: Arc::default() }
    }

    /// Closes the connection, because its client does not read a response that blocks it.
    pub(crate) fn hang_up(&self) {
        self.hang_up.notify_one();
    }

    /// Waits until the connection is to be closed.
    pub(crate) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }

    /// Whether a program on this machine sent the request for itself: not a proxy, and not a web
    /// page, whether its host is this machine or another name that resolves to it (DNS rebinding).
    pub(super) fn is_this_machine(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let others = [header::FORWARDED, header::HeaderName::from_static("x-forwarded-for"), header::ORIGIN];
        self.local
            && host_of(uri, headers).is_none_or(is_localhost)
            && !others.iter().any(|name| headers.contains_key(name))
    }
}

/// The host name that the client used.
pub(super) fn host_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    host.or(uri.authority().map(|authority| authority.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxied_and_cross_origin_requests_are_not_local() {
        let is_local = |from: &str, headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
            Peer::new(from.parse().unwrap()).is_this_machine(&Uri::from_static("/v2/state"), &headers)
        };
        assert!(is_local("127.0.0.1:5", &[]) && is_local("[::1]:5", &[("host", "[::1]:9200")]));
        assert!(is_local("[::ffff:127.0.0.1]:5", &[("host", "LocalHost:9200")]));
        assert!(!is_local("192.0.2.1:5", &[("host", "localhost")]));
        assert!(!is_local("127.0.0.1:5", &[("host", "evil.example:9200")]));
        assert!(!is_local("127.0.0.1:5", &[("host", "localhost"), ("x-forwarded-for", "192.0.2.1")]));
        assert!(!is_local("127.0.0.1:5", &[("host", "localhost"), ("forwarded", "for=192.0.2.1")]));
        assert!(!is_local("127.0.0.1:5", &[("host", "localhost"), ("origin", "http://localhost:3000")]));
    }
}
