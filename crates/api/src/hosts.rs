//! Which `Host` names a server answers to.
//!
//! A web page may give its own name the address of this machine (DNS rebinding), and its scripts
//! then reach a server here as if they came from the server itself. The name in `Host` tells them
//! apart.

use std::net::IpAddr;

/// The names that a server accepts in `Host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// All names.
    Any,
    /// The names of loopback, and these.
    Only(Vec<String>),
}

impl AllowedHosts {
    /// The names for a server that listens at `address`, or at a Unix socket. Without `names`, a
    /// server with an API key accepts any, because a web page does not have the key; so does a
    /// server for other machines, whose names it does not know.
    pub fn new(address: Option<&str>, has_key: bool, names: &[String]) -> AllowedHosts {
        let is_exposed = !has_key && address.is_some_and(is_localhost);
        match is_exposed || !names.is_empty() {
            true => AllowedHosts::Only(names.to_vec()),
            false => AllowedHosts::Any,
        }
    }

    /// Why a request with this `Host` (or HTTP/2 authority) is refused, if it is. Browsers always
    /// send one.
    pub fn refusal(&self, host: Option<&str>) -> Option<String> {
        let (AllowedHosts::Only(names), Some(host)) = (self, host) else { return None };
        let name = host_name(host);
        if is_localhost(host) || names.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
            return None;
        }
        let shown: String = name.chars().take(100).collect();
        Some(format!(
            "this server does not answer to the host name `{shown}`; if it is right, add --allowed-hosts {shown}"
        ))
    }

    /// Whether this `Host` is the server's beyond doubt: it is listed, or loopback's, or an address,
    /// which nobody can point elsewhere. Of a server that accepts all names, others are in doubt.
    pub fn is_known(&self, host: &str) -> bool {
        match self {
            AllowedHosts::Only(_) => self.refusal(Some(host)).is_none(),
            AllowedHosts::Any => is_localhost(host) || host_name(host).parse::<IpAddr>().is_ok(),
        }
    }
}

/// Whether a host name or address, with or without a port, is this machine's loopback.
pub fn is_localhost(host: &str) -> bool {
    let name = host_name(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// The name without its port, and an IPv6 address without its brackets.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None if host.parse::<IpAddr>().is_ok() => host,
        None => host.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_localhost() {
        for host in ["localhost", "LocalHost:8080", "127.0.0.1:80", "127.9.9.9", "[::1]:8080", "[::1]", "::1"] {
            assert!(is_localhost(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "0.0.0.0", "[fe80::1]:80", ""] {
            assert!(!is_localhost(host), "{host}");
        }
    }

    #[test]
    fn exposed_server_answers_to_loopback_and_given_names_only() {
        let refused = |address, has_key, names: &[&str], host| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            AllowedHosts::new(address, has_key, &names).refusal(Some(host)).is_some()
        };
        let loopback = Some("127.0.0.1");
        assert!(refused(loopback, false, &[], "evil.example:8080") && !refused(loopback, false, &[], "localhost:8080"));
        assert!(!refused(loopback, false, &["ai.example"], "AI.example:8080"));
        assert!(refused(loopback, false, &["ai.example"], "evil.example"));
        // A page has no key, and no access to a Unix socket.
        assert!(!refused(loopback, true, &[], "evil.example") && !refused(None, false, &[], "evil.example"));
        assert!(!refused(Some("0.0.0.0"), false, &[], "box.example"));
        assert!(refused(Some("0.0.0.0"), true, &["box.example"], "evil.example"));
        assert_eq!(AllowedHosts::Only(Vec::new()).refusal(None), None);
    }

    #[test]
    fn names_that_anyone_may_choose_are_not_known() {
        let any = AllowedHosts::Any;
        assert!(any.is_known("localhost:80") && any.is_known("10.0.0.1:8080") && any.is_known("[fe80::1]:80"));
        assert!(!any.is_known("evil.example:8080"));
        let only = AllowedHosts::Only(vec!["ai.example".into()]);
        assert!(only.is_known("AI.example:8080") && only.is_known("127.0.0.1") && !only.is_known("10.0.0.1"));
    }
}
