//! The token of the actions, and the limit on wrong tokens.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;

use crate::params::Problem;

/// The number of wrong tokens that an address may send in [`WINDOW`].
const MOST_WRONG: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// The maximum number of addresses that are stored. Beyond this number, the oldest addresses are forgotten.
const MOST_ADDRESSES: usize = 1_024;
/// The maximum number of lines about wrong tokens that are logged in [`WINDOW`].
const MOST_LINES: u32 = 20;

/// The secret that allows a client to [change the queue](crate::Builder::admin).
///
/// The token has 16 to 1,024 visible ASCII characters. Make one with `openssl rand -hex 32`.
#[derive(Clone)]
pub struct AdminToken(Box<str>);

impl AdminToken {
    /// Returns the token with this text.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is too short or too long, or contains spaces, control characters or characters
    /// outside of ASCII. The error does not contain the text.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue_http::AdminToken;
    ///
    /// assert!(AdminToken::new("0123456789abcdef").is_ok());
    /// assert!(AdminToken::new("secret").is_err());
    /// ```
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let is_valid = text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.len() {
            16..=1_024 if is_valid => Ok(Self(text.into())),
            _ => Err(TokenError(())),
        }
    }

    fn is_equal_to(&self, other: &[u8]) -> bool {
        // The comparison takes constant time, so that the duration of the request reveals no part of the token.
        self.0.as_bytes().ct_eq(other).into()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

/// The error for a text that cannot be an [`AdminToken`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a token has 16 to 1,024 visible ASCII characters; `openssl rand -hex 32` makes one")]
pub struct TokenError(());

/// The address of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Remote(Option<SocketAddr>);

impl Remote {
    /// Returns the client's address, which the server has put into the request. A client on a Unix socket has no
    /// address.
    fn of_request(request: &Request) -> Self {
        Self(request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0))
    }
}

impl Remote {
    /// Returns the name of a client that does not name its operator: its address, without the port.
    pub(crate) fn name(self) -> String {
        self.0.map_or_else(|| self.to_string(), |address| address.ip().to_canonical().to_string())
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("a client without an address"),
        }
    }
}

/// Decides which clients may change the queue.
#[derive(Debug)]
pub(crate) struct Admin {
    token: AdminToken,
    wrong: Mutex<HashMap<Option<IpAddr>, Wrong>>,
    lines: Mutex<Lines>,
}

/// The wrong tokens of an address.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    since: Instant,
    count: u32,
}

/// Limits the number of lines in the log, because clients without the token could fill the log.
#[derive(Debug, Default)]
struct Lines {
    since: Option<Instant>,
    count: u32,
    left_out: u64,
}

impl Lines {
    /// Returns the number of lines that were omitted since the last line, or `None` if this line must also be omitted.
    fn count_line(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.count) = (Some(now), 0);
        }
        if self.count >= MOST_LINES {
            self.left_out += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Admin {
    pub(crate) fn new(token: AdminToken) -> Self {
        Self { token, wrong: Mutex::default(), lines: Mutex::default() }
    }

    /// Checks the token of a request. Returns the address of the client, or the error response.
    pub(crate) fn check_token(&self, request: &Request) -> Result<Remote, Problem> {
        let remote = Remote::of_request(request);
        // Exactly one such header is permitted, so that a proxy and this server cannot read different headers.
        let mut sent = request.headers().get_all(AUTHORIZATION).iter();
        let token = match (sent.next().map(|value| value.as_bytes()), sent.next()) {
            (Some(value), None) => bearer_token(value),
            _ => None,
        };
        let Some(token) = token else {
            let error = "this needs the header `Authorization: Bearer TOKEN`";
            return Err(refuse_token("Bearer", error));
        };
        // The limit is checked before the token. Otherwise, the responses beyond the limit would still reveal whether a
        // guess is right.
        if let Some(wait) = self.refused_for(remote) {
            self.log_limited(remote, "too many wrong tokens: refused");
            let error = "too many wrong tokens from this address; try again later";
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, error);
            return Err(problem.with_header(RETRY_AFTER, wait.as_secs() + 1));
        }
        if !self.token.is_equal_to(token) {
            self.count_wrong(remote);
            self.log_limited(remote, "wrong token");
            return Err(refuse_token("Bearer error=\"invalid_token\"", "wrong token"));
        }
        Ok(remote)
    }

    fn log_limited(&self, remote: Remote, what: &str) {
        let line = self.lines.lock().count_line(Instant::now());
        match line {
            Some(0) => tracing::warn!(%remote, "{what}"),
            Some(left_out) => {
                tracing::warn!(%remote, left_out, "{what}; earlier lines were left out")
            }
            None => {}
        }
    }

    /// Returns the time for which an address is refused, if it has sent too many wrong tokens.
    fn refused_for(&self, remote: Remote) -> Option<Duration> {
        let wrong = self.wrong.lock();
        let Wrong { since, count } = *wrong.get(&limited_address(remote))?;
        let left = WINDOW.checked_sub(since.elapsed())?;
        (count >= MOST_WRONG).then_some(left)
    }

    fn count_wrong(&self, remote: Remote) {
        let mut wrong = self.wrong.lock();
        // Each address is forgotten after its window, which limits the memory.
        wrong.retain(|_, wrong| wrong.since.elapsed() < WINDOW);
        let place = limited_address(remote);
        if !wrong.contains_key(&place) && wrong.len() >= MOST_ADDRESSES {
            // The oldest address is removed, so that an attacker with many addresses does not lock out other clients.
            let oldest = wrong.iter().min_by_key(|(_, wrong)| wrong.since).map(|(&place, _)| place);
            oldest.and_then(|oldest| wrong.remove(&oldest));
        }
        let entry = wrong.entry(place).or_insert(Wrong { since: Instant::now(), count: 0 });
        entry.count = entry.count.saturating_add(1);
    }
}

/// Returns the address to which the limit applies. A client can use all addresses of its IPv6 network, and a process of
/// this machine all loopback addresses.
fn limited_address(Remote(remote): Remote) -> Option<IpAddr> {
    remote.map(|remote| match remote.ip().to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        // The first 64 bits name the network of a client.
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    })
}

fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

fn refuse_token(challenge: &'static str, error: &str) -> Problem {
    let challenge = HeaderValue::from_static(challenge);
    Problem::new(StatusCode::UNAUTHORIZED, error).with_header(WWW_AUTHENTICATE, challenge)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::response::IntoResponse;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn status(admin: &Admin, address: &str, header: &str) -> u16 {
        let mut request = Request::builder().header(AUTHORIZATION, header);
        let address: SocketAddr = address.parse().unwrap();
        request.extensions_mut().unwrap().insert(ConnectInfo(address));
        match admin.check_token(&request.body(Body::empty()).unwrap()) {
            Ok(remote) => {
                assert_eq!(remote, Remote(Some(address)));
                200
            }
            Err(problem) => problem.into_response().status().as_u16(),
        }
    }

    #[test]
    fn a_token_is_long_and_visible_and_never_shown() {
        let long = "x".repeat(1025);
        for wrong in
            ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdéf", &long]
        {
            assert!(AdminToken::new(wrong).is_err(), "{wrong}");
        }
        let admin = Admin::new(AdminToken::new(TOKEN).unwrap());
        assert!(!format!("{admin:?}").contains(TOKEN));
    }

    #[test]
    fn only_the_whole_token_in_its_header_is_accepted() {
        let admin = Admin::new(AdminToken::new(TOKEN).unwrap());
        let right =
            [format!("Bearer {TOKEN}"), format!("bearer {TOKEN}"), format!("BEARER  {TOKEN}")];
        for header in right {
            assert_eq!(status(&admin, "127.0.0.1:1", &header), 200, "{header}");
        }
        for header in ["", TOKEN, "Bearer", "Basic 0123456789abcdef", "Bearer 0123456789abcde"] {
            assert_eq!(status(&admin, "127.0.0.1:1", header), 401, "{header}");
        }
    }

    #[test]
    fn an_address_that_guesses_is_refused_and_others_are_not() {
        let admin = Admin::new(AdminToken::new(TOKEN).unwrap());
        let right = format!("Bearer {TOKEN}");
        for port in 1..=MOST_WRONG {
            assert_eq!(status(&admin, &format!("10.0.0.1:{port}"), "Bearer wrong"), 401);
        }
        // Even the right token is refused, because a response must not reveal whether a guess is right.
        assert_eq!(status(&admin, "10.0.0.1:99", &right), 429);
        assert_eq!(status(&admin, "10.0.0.2:99", &right), 200);
        for n in 0..MOST_WRONG {
            assert_eq!(status(&admin, &format!("[2001:db8::{n:x}]:1"), "Bearer wrong"), 401);
        }
        assert_eq!(status(&admin, "[2001:db8::ffff]:1", &right), 429);
        assert_eq!(status(&admin, "[2001:db8:0:1::1]:1", &right), 200);
        // A process of this machine can send from each loopback address.
        for n in 1..=MOST_WRONG {
            assert_eq!(status(&admin, &format!("127.0.{n}.1:1"), "Bearer wrong"), 401);
        }
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.3.2.1]:1"] {
            assert_eq!(status(&admin, address, &right), 429, "{address}");
        }
        // The memory is limited.
        for n in 0..2 * MOST_ADDRESSES as u32 {
            let address = Ipv4Addr::from_bits(0x0b00_0000 + n);
            status(&admin, &format!("{address}:1"), "Bearer wrong");
        }
        assert!(admin.wrong.lock().len() <= MOST_ADDRESSES);
        assert_eq!(status(&admin, "12.0.0.1:1", &right), 200);
    }

    #[test]
    fn guesses_do_not_fill_the_log() {
        let (mut lines, begin) = (Lines::default(), Instant::now());
        let written = (0..1_000).filter(|_| lines.count_line(begin).is_some()).count();
        assert_eq!(written, MOST_LINES as usize);
        assert_eq!(lines.count_line(begin + WINDOW - Duration::from_millis(1)), None);
        assert_eq!(lines.count_line(begin + WINDOW), Some(1_001 - u64::from(MOST_LINES)));
        assert_eq!(lines.count_line(begin + WINDOW), Some(0));
    }
}
