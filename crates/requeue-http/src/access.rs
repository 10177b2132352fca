//! The tokens of clients with their roles, and the limit on the number of wrong tokens.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::api::{Named, WorkAction};
use crate::keys::from_base64;
use crate::params::Problem;

/// The number of wrong tokens that an address may send in a period of [`WINDOW`].
const MOST_WRONG: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// The maximum number of addresses whose wrong tokens are counted. If there are more, the oldest
/// address is forgotten.
const MOST_ADDRESSES: usize = 1_024;
/// The challenge in the response to a refused read. A browser then asks the user for a name and a
/// password.
const ASK_FOR_PASSWORD: &str = "Basic realm=\"requeue\"";
/// The maximum number of lines about wrong tokens in the log, in a period of [`WINDOW`].
const MOST_LINES: u32 = 20;

/// A secret with which a client proves its [roles](Role): see
/// [`Builder::token`](crate::Builder::token).
///
/// The token has 16 to 1,024 visible ASCII characters. The command `openssl rand -hex 32` creates
/// one. A value of this type contains only the SHA-256 hash of the token. Neither the memory of the
/// server nor a file with hashes therefore reveals the token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessToken {
    hash: [u8; 32],
}

impl AccessToken {
    /// Creates an access token from its text.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is too short or too long, or if it contains spaces, control
    /// characters, or characters outside of ASCII. The error does not contain the text.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue_http::AccessToken;
    ///
    /// assert!(AccessToken::new("0123456789abcdef").is_ok());
    /// assert!(AccessToken::new("secret").is_err());
    /// ```
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let is_valid = text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.len() {
            16..=1_024 if is_valid => Ok(Self { hash: hash_of(text.as_bytes()) }),
            _ => Err(TokenError::Token),
        }
    }

    /// Creates an access token from its SHA-256 hash in hexadecimal digits.
    ///
    /// # Errors
    ///
    /// Returns an error if the text does not consist of 64 hexadecimal digits.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue_http::AccessToken;
    ///
    /// // printf %s 0123456789abcdef | sha256sum
    /// let hash = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
    /// assert_eq!(AccessToken::from_hash(hash), AccessToken::new("0123456789abcdef"));
    /// assert!(AccessToken::from_hash("9f9f").is_err());
    /// ```
    pub fn from_hash(text: &str) -> Result<Self, TokenError> {
        let mut hash = [0; 32];
        let (digits, rest) = text.as_bytes().as_chunks::<2>();
        if digits.len() != hash.len() || !rest.is_empty() {
            return Err(TokenError::Hash);
        }
        for (byte, digits) in hash.iter_mut().zip(digits) {
            let value = |digit: u8| char::from(digit).to_digit(16).ok_or(TokenError::Hash);
            *byte = (value(digits[0])? * 16 + value(digits[1])?) as u8;
        }
        Ok(Self { hash })
    }
}

fn hash_of(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(..)")
    }
}

/// The set of requests that a token permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Role {
    /// Permits requests that read. If any token of a site has this role, all reads except
    /// `/healthz` and `/readyz` need a token with it, or with [`Admin`](Self::Admin).
    Read,
    /// Permits requests that add keys.
    Add,
    /// Permits the requests of workers: claiming keys, renewing their leases, and ending the
    /// claims.
    Work,
    /// Permits all requests.
    Admin,
}

impl Role {
    /// All roles with their names, as they appear in error messages.
    const ALL: [(Self, &'static str); 4] =
        [(Self::Read, "read"), (Self::Add, "add"), (Self::Work, "work"), (Self::Admin, "admin")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(role, _)| *role == self).map_or("", |(_, name)| name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Returns the role that the action with this path needs, or `None` if any token suffices.
    fn of_action(path: &str) -> Option<Self> {
        match path.rsplit('/').next().unwrap_or_default() {
            "authenticate" => None,
            "add" => Some(Self::Add),
            name if WorkAction::named(name).is_some() => Some(Self::Work),
            _ => Some(Self::Admin),
        }
    }
}

/// The set of roles of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Roles(u8);

impl Roles {
    /// Returns true if a token with these roles permits requests that need `role`.
    pub(crate) const fn permit(self, role: Role) -> bool {
        self.0 & (role.bit() | Role::Admin.bit()) != 0
    }

    /// Returns true if a token with these roles permits at least one action.
    const fn permit_actions(self) -> bool {
        self.0 & !Role::Read.bit() != 0
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Role::ALL.iter().filter(|(role, _)| self.0 & role.bit() != 0);
        let names: Vec<_> = names.map(|(_, name)| *name).collect();
        f.write_str(&names.join(" and "))
    }
}

/// The error for a text that cannot be an [`AccessToken`] or the hash of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The text cannot be a token.
    #[error("a token has 16 to 1,024 visible ASCII characters; `openssl rand -hex 32` makes one")]
    Token,
    /// The text cannot be a hash.
    #[error("a SHA-256 hash has 64 hexadecimal digits; `printf %s TOKEN | sha256sum` computes one")]
    Hash,
}

/// The address of a client, or `None` if the client has no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Remote(Option<SocketAddr>);

impl Remote {
    /// Returns the client's address, which the server has stored in the request. A client that is
    /// connected to a Unix socket has no address.
    fn of_request(request: &Request) -> Self {
        Self(request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0))
    }
}

impl Remote {
    /// Returns the IP address of the client as text. It is the operator's name if the request does
    /// not contain one.
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

/// A client that has sent a valid token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) remote: Remote,
    pub(crate) roles: Roles,
}

/// The tokens of a site, and the wrong tokens that clients have sent.
#[derive(Debug, Default)]
pub(crate) struct Access {
    tokens: Vec<(AccessToken, Roles)>,
    wrong: Mutex<HashMap<Option<IpAddr>, Wrong>>,
    lines: Mutex<Lines>,
}

/// The number of wrong tokens from one address since a point in time.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    since: Instant,
    count: u32,
}

/// Limits the number of lines about wrong tokens in the log. Otherwise, clients without a token
/// could fill the log.
#[derive(Debug, Default)]
struct Lines {
    since: Option<Instant>,
    count: u32,
    left_out: u64,
}

impl Lines {
    /// Counts a line. Returns the number of lines that were omitted since the last logged line, or
    /// `None` if this line must also be omitted.
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

impl Access {
    /// Gives a token a role, in addition to its other roles.
    pub(crate) fn give_role(&mut self, token: AccessToken, role: Role) {
        match self.tokens.iter_mut().find(|(known, _)| *known == token) {
            Some((_, roles)) => roles.0 |= role.bit(),
            None => self.tokens.push((token, Roles(role.bit()))),
        }
    }

    fn has(&self, is_wanted: impl Fn(Roles) -> bool) -> bool {
        self.tokens.iter().any(|(_, roles)| is_wanted(*roles))
    }

    /// Returns true if at least one token permits actions. Otherwise, the site is read-only.
    pub(crate) fn permits_actions(&self) -> bool {
        self.has(Roles::permit_actions)
    }

    /// Checks the token of a request that reads. Any request is permitted if no token has the role
    /// [`Role::Read`].
    pub(crate) fn check_read(&self, request: &Request) -> Result<(), Problem> {
        if !self.has(|roles| roles.0 & Role::Read.bit() != 0) {
            return Ok(());
        }
        let token = sent_token(request, &[b"bearer ", b"basic "]);
        let Some(token) = token else {
            let error = "reading needs a token: the header `Authorization: Bearer TOKEN`, or the password in a browser";
            return Err(refuse_token(ASK_FOR_PASSWORD, error));
        };
        self.check(request, &token, Some(Role::Read)).map(drop)
    }

    /// Checks the token of an action. Returns the client, or the error response.
    pub(crate) fn check_action(&self, request: &Request) -> Result<Client, Problem> {
        // A password is not accepted, because a browser sends it also with requests that the user
        // did not intend.
        let Some(token) = sent_token(request, &[b"bearer "]) else {
            let error = "this needs the header `Authorization: Bearer TOKEN`";
            return Err(refuse_token("Bearer", error));
        };
        self.check(request, &token, Role::of_action(request.uri().path()))
    }

    fn check(
        &self,
        request: &Request,
        token: &[u8],
        role: Option<Role>,
    ) -> Result<Client, Problem> {
        let remote = Remote::of_request(request);
        // The limit is checked before the token. Otherwise, a client over the limit could still
        // learn whether a guess is right.
        if let Some(wait) = self.refused_for(remote) {
            self.log_limited(remote, "too many wrong tokens: refused");
            let error = "too many wrong tokens from this address; try again later";
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, error);
            return Err(problem.with_header(RETRY_AFTER, wait.as_secs() + 1));
        }
        let Some(roles) = self.roles_of(token) else {
            self.count_wrong(remote);
            self.log_limited(remote, "wrong token");
            let challenge = match role {
                Some(Role::Read) => ASK_FOR_PASSWORD,
                _ => "Bearer error=\"invalid_token\"",
            };
            return Err(refuse_token(challenge, "wrong token"));
        };
        match role {
            // The status is 401. With the status 403, a browser would not ask for another password.
            Some(Role::Read) if !roles.permit(Role::Read) => {
                let error = format!("the token has the role {roles}, and reading needs read");
                Err(refuse_token(ASK_FOR_PASSWORD, &error))
            }
            Some(role) if !roles.permit(role) => {
                let (path, role) = (request.uri().path(), role.name());
                let error = format!(
                    "the token has the role {roles}, and {path} needs {role}; use a token with that role"
                );
                Err(Problem::new(StatusCode::FORBIDDEN, error))
            }
            _ => Ok(Client { remote, roles }),
        }
    }

    fn roles_of(&self, token: &[u8]) -> Option<Roles> {
        let hash = hash_of(token);
        // The token is compared with all hashes, and each comparison takes constant time. The
        // duration of the request therefore reveals none of them.
        let equal = |(known, _): &&(AccessToken, Roles)| known.hash.ct_eq(&hash).into();
        let found: Vec<_> = self.tokens.iter().filter(equal).collect();
        found.first().map(|(_, roles)| *roles)
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

    /// Returns the time for which requests from an address are still refused, or `None` if the
    /// address has not reached the limit.
    fn refused_for(&self, remote: Remote) -> Option<Duration> {
        let wrong = self.wrong.lock();
        let Wrong { since, count } = *wrong.get(&limited_address(remote))?;
        let left = WINDOW.checked_sub(since.elapsed())?;
        (count >= MOST_WRONG).then_some(left)
    }

    fn count_wrong(&self, remote: Remote) {
        let mut wrong = self.wrong.lock();
        // Addresses whose window is over are forgotten, so that the map needs little memory.
        wrong.retain(|_, wrong| wrong.since.elapsed() < WINDOW);
        let place = limited_address(remote);
        if !wrong.contains_key(&place) && wrong.len() >= MOST_ADDRESSES {
            // The oldest address is removed instead of refusing new addresses. Otherwise, an
            // attacker with many addresses could lock out other clients.
            let oldest = wrong.iter().min_by_key(|(_, wrong)| wrong.since).map(|(&place, _)| place);
            oldest.and_then(|oldest| wrong.remove(&oldest));
        }
        let entry = wrong.entry(place).or_insert(Wrong { since: Instant::now(), count: 0 });
        entry.count = entry.count.saturating_add(1);
    }
}

/// Returns the address whose wrong tokens are counted. All addresses of an IPv6 network are one
/// address, because a client can use all of them. All loopback addresses are one address, because a
/// local process can use all of them.
fn limited_address(Remote(remote): Remote) -> Option<IpAddr> {
    remote.map(|remote| match remote.ip().to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        // The first 64 bits of an IPv6 address identify the network of the client.
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    })
}

/// Returns the token of a request, if its `Authorization` header has one of `schemes`. Each scheme
/// is in lower case and ends with a space.
fn sent_token(request: &Request, schemes: &[&[u8]]) -> Option<Vec<u8>> {
    // A request with several `Authorization` headers is refused, because a proxy might check one of
    // them, and this server another.
    let mut sent = request.headers().get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (sent.next(), sent.next()) else { return None };
    let value = value.as_bytes();
    let is_used = |scheme: &&&[u8]| {
        value.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
    };
    let scheme = *schemes.iter().find(is_used)?;
    let rest = value[scheme.len()..].trim_ascii();
    if scheme == b"bearer " {
        return Some(rest.to_vec());
    }
    // The user name before the colon is ignored. The token is the password.
    let pair = from_base64(rest)?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(pair[colon + 1..].to_vec())
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

    fn access() -> Access {
        let mut access = Access::default();
        access.give_role(AccessToken::new(TOKEN).unwrap(), Role::Admin);
        access
    }

    fn status(access: &Access, address: &str, header: &str) -> u16 {
        let mut request = Request::builder().header(AUTHORIZATION, header);
        let address: SocketAddr = address.parse().unwrap();
        request.extensions_mut().unwrap().insert(ConnectInfo(address));
        match access.check_action(&request.body(Body::empty()).unwrap()) {
            Ok(client) => {
                assert_eq!(client.remote, Remote(Some(address)));
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
            assert!(AccessToken::new(wrong).is_err(), "{wrong}");
        }
        let access = access();
        assert!(!format!("{access:?}").contains(TOKEN));
    }

    #[test]
    fn only_the_whole_token_in_its_header_is_accepted() {
        let access = access();
        let right =
            [format!("Bearer {TOKEN}"), format!("bearer {TOKEN}"), format!("BEARER  {TOKEN}")];
        for header in right {
            assert_eq!(status(&access, "127.0.0.1:1", &header), 200, "{header}");
        }
        for header in ["", TOKEN, "Bearer", "Basic 0123456789abcdef", "Bearer 0123456789abcde"] {
            assert_eq!(status(&access, "127.0.0.1:1", header), 401, "{header}");
        }
    }

    #[test]
    fn a_token_permits_only_the_requests_of_its_roles() {
        let mut access = Access::default();
        let tokens =
            ["read", "add", "work", "admin"].map(|role| format!("{role}-0123456789abcdef"));
        for ((role, _), text) in Role::ALL.iter().zip(&tokens) {
            access.give_role(AccessToken::new(text).unwrap(), *role);
        }
        let both = AccessToken::new("both-0123456789abcdef").unwrap();
        access.give_role(both, Role::Add);
        access.give_role(both, Role::Work);
        let answer = |path: &str, authorization: &str| {
            let request = Request::builder().uri(path).header(AUTHORIZATION, authorization);
            let request = request.body(Body::empty()).unwrap();
            let checked = if path.contains("keys") {
                access.check_read(&request)
            } else {
                access.check_action(&request).map(drop)
            };
            checked.map_or_else(|problem| problem.into_response().status().as_u16(), |()| 200)
        };
        for (path, expected) in [
            ("/api/v1/keys", [200, 401, 401, 200, 401]),
            ("/api/v1/add", [403, 200, 403, 200, 200]),
            ("/api/v1/claim", [403, 403, 200, 200, 200]),
            ("/api/v1/fail", [403, 403, 200, 200, 200]),
            ("/api/v1/cancel", [403, 403, 403, 200, 403]),
            ("/api/v1/authenticate", [200; 5]),
        ] {
            let all = tokens.iter().map(|token| &**token).chain(["both-0123456789abcdef"]);
            let found: Vec<_> = all.map(|token| answer(path, &format!("Bearer {token}"))).collect();
            assert_eq!(found, expected, "{path}");
        }
        // A password is accepted by reads, but not by actions.
        for token in [&tokens[0], &tokens[3]] {
            let password =
                format!("Basic {}", crate::keys::to_base64(format!("ann:{token}").as_bytes()));
            assert_eq!(answer("/api/v1/keys", &password), 200);
            assert_eq!(answer("/api/v1/add", &password), 401);
        }
        for wrong in ["", "Basic", "Basic YW5u", "Basic YW5uOndyb25n"] {
            assert_eq!(answer("/api/v1/keys", wrong), 401, "{wrong}");
        }
    }

    #[test]
    fn an_address_that_guesses_is_refused_and_others_are_not() {
        let access = access();
        let right = format!("Bearer {TOKEN}");
        for port in 1..=MOST_WRONG {
            assert_eq!(status(&access, &format!("10.0.0.1:{port}"), "Bearer wrong"), 401);
        }
        // The right token is also refused, because the response must not reveal whether a guess is
        // right.
        assert_eq!(status(&access, "10.0.0.1:99", &right), 429);
        assert_eq!(status(&access, "10.0.0.2:99", &right), 200);
        for n in 0..MOST_WRONG {
            assert_eq!(status(&access, &format!("[2001:db8::{n:x}]:1"), "Bearer wrong"), 401);
        }
        assert_eq!(status(&access, "[2001:db8::ffff]:1", &right), 429);
        assert_eq!(status(&access, "[2001:db8:0:1::1]:1", &right), 200);
        // All loopback addresses share one limit, because a local process can send from each of
        // them.
        for n in 1..=MOST_WRONG {
            assert_eq!(status(&access, &format!("127.0.{n}.1:1"), "Bearer wrong"), 401);
        }
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.3.2.1]:1"] {
            assert_eq!(status(&access, address, &right), 429, "{address}");
        }
        // The number of stored addresses is limited.
        for n in 0..2 * MOST_ADDRESSES as u32 {
            let address = Ipv4Addr::from_bits(0x0b00_0000 + n);
            status(&access, &format!("{address}:1"), "Bearer wrong");
        }
        assert!(access.wrong.lock().len() <= MOST_ADDRESSES);
        assert_eq!(status(&access, "12.0.0.1:1", &right), 200);
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
