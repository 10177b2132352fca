//! `--serve`: the page of the run, for as long as it runs.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use requeue::metrics::Metrics;
use requeue_http::{Builder, Detail, Site};
use rustix::process::Resource;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::command::escaped;
use crate::config::Config;
use crate::exit::Refusal;
use crate::run::Runner;

/// `[ADDR:]PORT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    /// A name or an address; loopback's, if none is given.
    host: Option<String>,
    port: u16,
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "a port from 0 to 65535, or an address and a port, as in 0.0.0.0:8080 \
                             or [::]:8080";
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        // `parse` takes a sign, too.
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or(WRONG)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match (bracketed, host) {
            (Some(address), _) if address.parse::<IpAddr>().is_ok_and(|it| it.is_ipv6()) => {
                Some(address.to_owned())
            }
            (None, "") => None,
            (None, host) if !host.contains([':', '[', ']', '/', '@']) => Some(host.to_owned()),
            _ => return Err(WRONG),
        };
        Ok(Self { host, port })
    }
}

/// What is listened at, before there is anything to be seen.
pub(crate) struct Listener {
    listener: TcpListener,
    asked: Address,
    registry: Registry,
    metrics: Metrics,
}

impl Listener {
    /// Nothing, if there is to be no page.
    pub(crate) async fn of(config: &Config) -> Result<Option<Self>, Refusal> {
        match &config.serve {
            Some(address) => Self::bind(address).await.map(Some),
            None => Ok(None),
        }
    }

    async fn bind(asked: &Address) -> Result<Self, Refusal> {
        let host = asked.host.as_deref().unwrap_or("127.0.0.1");
        let listener = TcpListener::bind((host, asked.port)).await.map_err(|error| {
            let host = escaped(host.as_bytes());
            Refusal::failure(format!("--serve: {host}, port {}: {error}", asked.port))
        })?;
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        Ok(Self { listener, asked: asked.clone(), registry, metrics })
    }

    pub(crate) const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Serves the page of this run, and says where.
    pub(crate) async fn serve(self, runner: &Arc<Runner>) -> Result<Page, Refusal> {
        let failure = |error: std::io::Error| Refusal::failure(format!("--serve: {error}"));
        let address = self.listener.local_addr().map_err(failure)?;
        let of = Arc::clone(runner);
        let (listener, registry) = (self.listener, Arc::new(self.registry));
        let dress = Dress { title: title(runner), registry, address, asked: self.asked.host };
        let site = match &runner.loans {
            #[cfg(feature = "store")]
            Some(loans) => dress.on(loans.lender.page().detail(move |key| of.slot(key))),
            _ => dress.on(Site::builder(runner.queue.clone()).detail(move |key| of.detail(key))),
        };
        let served = site.clone();
        let server = tokio::spawn(async move { served.serve(listener).await });
        runner.output.say(&format!("http://{address}/ shows how it goes")).await;
        if address.ip().is_unspecified() {
            let warning = "--serve: every host that reaches this machine can see keys, output and errors; \
                           there is no password";
            runner.output.say(warning).await;
        }
        Ok(Page { site, server })
    }
}

/// What a page has whatever it shows.
struct Dress {
    title: String,
    registry: Arc<Registry>,
    address: SocketAddr,
    /// The host that was asked for.
    asked: Option<String>,
}

impl Dress {
    fn on<K>(self, site: Builder<K>) -> Site {
        let mut site = site.title(self.title).registry(self.registry).max_connections(
            most_connections(rustix::process::getrlimit(Resource::Nofile).current),
        );
        let address = self.address;
        if address.ip().is_unspecified() {
            // Whatever this machine's addresses are, and its name.
            let system = rustix::system::uname();
            site = site.any_address().host(&system.nodename().to_string_lossy());
        } else {
            site = site.host(&address.ip().to_string());
        }
        if let Some(host) = &self.asked {
            site = site.host(host);
        }
        site.build()
    }
}

/// How many connections leave descriptors for commands, where a process may have so many.
fn most_connections(descriptors: Option<u64>) -> usize {
    descriptors.map_or(64, |most| (most / 8).clamp(2, 64) as usize)
}

/// Neither arguments nor scripts: they may hold what is not for everyone.
fn title(runner: &Runner) -> String {
    let program = runner.config.template.fixed_program();
    let name = program.as_deref().and_then(|program| Path::new(program).file_name());
    match name.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()) {
        Some(name) => format!("requeue {} {name}", runner.config.name),
        None => format!("requeue {}", runner.config.name),
    }
}

impl Runner {
    fn slot(&self, key: &[u8]) -> Detail {
        match self.groups.slot(key) {
            Some(slot) => Detail::new().field("slot", slot),
            None => Detail::new(),
        }
    }

    /// What the page is told of a key besides what the queue knows.
    fn detail(&self, key: &[u8]) -> Detail {
        let past = self.failing.past(key);
        let mut detail = self.slot(key).attempt(past.attempt);
        if let Some(exit) = past.last_exit {
            detail = detail.field("last exit", exit);
        }
        detail
    }
}

/// The page while it is served.
pub(crate) struct Page {
    site: Site,
    server: JoinHandle<std::io::Result<()>>,
}

impl Page {
    /// Tells those who look that it ends; takes a second at most.
    pub(crate) async fn end(self) {
        self.site.end();
        let _ = self.server.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_left_out_but_not_a_port() {
        for (text, host, port) in [
            ("8080", None, 8080),
            (":8080", None, 8080),
            (":0", None, 0),
            ("0.0.0.0:80", Some("0.0.0.0"), 80),
            ("localhost:80", Some("localhost"), 80),
            ("[::1]:80", Some("::1"), 80),
        ] {
            let address = Address { host: host.map(str::to_owned), port };
            assert_eq!(text.parse(), Ok(address), "{text}");
        }
        for text in
            ["", ":", "a", "localhost", "localhost:", "::1", "::1:80", "65536", "+80", "-1", "[]:1"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
