//! The hosts whose names requests may contain.
//!
//! Another site can make its own host name resolve to this machine (DNS rebinding). If the server
//! answered requests with that name, scripts of that site could read the responses. Another site
//! cannot redirect an address.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The names and addresses that the `Host` header of a request may contain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    names: BTreeSet<String>,
    /// True if all names and IP addresses are allowed.
    pub(crate) any: bool,
    /// True if all IP addresses are allowed.
    pub(crate) any_address: bool,
}

impl Hosts {
    pub(crate) fn allow_host(&mut self, name: &str) {
        self.names.insert(canonical_name(name));
    }

    /// Returns true if requests with this host are answered. `host` may contain a port.
    pub(crate) fn is_allowed(&self, host: &str) -> bool {
        if self.any {
            return true;
        }
        let Some(name) = without_port(host) else { return false };
        let name = canonical_name(name);
        if self.names.contains(&name) {
            return true;
        }
        match name.parse::<IpAddr>() {
            // A request with this address comes from a page at this address, because no name
            // server can redirect an address.
            Ok(address) => self.any_address || address.to_canonical().is_loopback(),
            Err(_) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

fn without_port(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    // A text that is not a port could be read as part of another host name by a proxy.
    let ends = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    (ends && !name.is_empty()).then_some(name)
}

fn canonical_name(name: &str) -> String {
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    // A name with a final dot is the same as the name without it.
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_and_those_allowed_are_answered() {
        let mut hosts = Hosts::default();
        hosts.allow_host("Build.Example.org");
        hosts.allow_host("[2001:db8::1]");
        for host in [
            "localhost",
            "LOCALHOST:80",
            "a.localhost:1",
            "localhost.",
            "127.0.0.1:65535",
            "127.9.9.9",
            "[::1]:80",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "build.example.org:8080",
            "build.example.org.",
            "[2001:DB8:0::1]:80",
        ] {
            assert!(hosts.is_allowed(host), "{host}");
        }
        for host in [
            "",
            ":80",
            "example.org",
            "evil.build.example.org",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "notlocalhost",
            "10.0.0.1",
            "[2001:db8::2]",
            "localhost:99999",
            "localhost:80:80",
            "user@localhost",
            "[::1",
            "[::1]x",
            "127.0.0.1 ",
        ] {
            assert!(!hosts.is_allowed(host), "{host}");
        }
    }

    #[test]
    fn any_address_is_no_name_and_any_host_is_all() {
        let mut hosts = Hosts { any_address: true, ..Hosts::default() };
        assert!(hosts.is_allowed("10.0.0.1:80") && hosts.is_allowed("[2001:db8::2]"));
        assert!(!hosts.is_allowed("example.org"));
        hosts.any = true;
        assert!(hosts.is_allowed("example.org"));
    }
}
