//! The parameters of requests, and the error responses.

#[cfg(feature = "store")]
use std::error::Error;

use axum::http::StatusCode;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode;
use serde::Serialize;

use crate::api::{AddResult, Failure, Named};
use crate::keys::from_base64;

/// An error response: its status, its body and at most one additional header.
#[derive(Debug)]
pub(crate) struct Problem {
    failure: Box<Failure>,
    /// The number of keys that are known to be changed in spite of the error.
    pub(crate) changed: usize,
    status: StatusCode,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        let failure = Box::new(Failure { error: error.into(), ..Failure::default() });
        Self { failure, changed: 0, status, header: None }
    }

    /// Adds a header to the response.
    pub(crate) fn with_header(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Self {
        self.header = Some((name, value.into()));
        self
    }

    /// Returns the error for a request that exceeds a limit on concurrent requests.
    pub(crate) fn busy(error: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}; try again later"))
            .with_header(header::RETRY_AFTER, 5)
    }

    /// Returns the error for a claim in a process whose queue delivers no more keys.
    pub(crate) fn stopped() -> Self {
        // The client should repeat the request soon, because another process may serve the queue
        // then.
        Self::busy("the queue is shut down in this process").with_header(header::RETRY_AFTER, 1)
    }

    /// Returns the error for a change of matching keys, if their number differs too much from
    /// the confirmed number.
    pub(crate) fn other_count(matched: usize, expected: usize) -> Self {
        let error = format!(
            "{matched} matching keys, but {expected} were confirmed; nothing was changed: confirm again"
        );
        let mut problem = Self::new(StatusCode::CONFLICT, error);
        problem.failure.matched = Some(matched);
        problem
    }

    /// Returns the error for an invalid parameter or field of a request.
    pub(crate) fn parameter(name: &str, error: &str) -> Self {
        let mut problem = Self::new(StatusCode::BAD_REQUEST, format!("{name}: {error}"));
        problem.failure.parameter = Some(name.to_owned());
        problem
    }

    /// Adds the results for the keys of an add, because some of the keys may have been added in
    /// spite of the error.
    pub(crate) fn with_results(mut self, results: Vec<Option<AddResult>>) -> Self {
        let unknown = results.iter().filter(|&&result| result == Some(AddResult::Unknown)).count();
        let (added, all) = (results.iter().flatten().count() - unknown, results.len());
        self.failure.error += &format!("; {added} of {all} keys were added");
        if unknown > 0 {
            self.failure.error += &format!(", and {unknown} may have been added");
        }
        self.failure.results = results;
        self.with_changed(added)
    }

    /// Sets the number of keys that are known to be changed in spite of the error.
    pub(crate) const fn with_changed(mut self, changed: usize) -> Self {
        self.changed = changed;
        self
    }

    /// Returns true if the request was refused before it changed any key.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT) && self.changed == 0
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, self.header.map(|header| [header]), json(&self.failure)).into_response()
    }
}

/// Returns the error for bytes that no key of the queue can have.
pub(crate) fn no_key(parameter: &str) -> Problem {
    Problem::parameter(parameter, "not a valid key of this queue")
}

/// Returns the text of an error, followed by the text of its cause.
#[cfg(feature = "store")]
pub(crate) fn with_source(error: impl Error) -> String {
    let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// Returns a response with `value` as JSON. Serialization does not fail for the types of this
/// crate.
pub(crate) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The decoded parameters of a query. The values are bytes, because a key need not be text.
#[derive(Debug)]
pub(crate) struct Params(Vec<(String, Vec<u8>)>);

impl Params {
    /// Decodes a query. Returns an error if a parameter is not in `known`, or is given more than
    /// once.
    pub(crate) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Problem> {
        let mut params: Vec<(String, Vec<u8>)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8_lossy(&decode_value(name)).into_owned();
            // Unknown parameters are refused. Otherwise, a request with a misspelled filter
            // would select all keys.
            if !known.contains(&&*name) {
                let known = match known {
                    [] => "this path has no parameters".to_owned(),
                    known => format!("the parameters are {}", known.join(", ")),
                };
                return Err(Problem::parameter(&name, &format!("no such parameter; {known}")));
            }
            // Repeated parameters are refused, because a proxy might check the first value, and
            // this server use the last one.
            if params.iter().any(|(other, _)| *other == name) {
                return Err(Problem::parameter(&name, "given more than once"));
            }
            params.push((name, decode_value(value)));
        }
        Ok(Self(params))
    }

    pub(crate) fn value_of(&self, name: &str) -> Option<&[u8]> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        Some(value)
    }

    /// Returns the key that `key` or `key_base64` contains, and the name of that parameter.
    /// Returns an error if both are missing.
    pub(crate) fn key_of(&self) -> Result<(&'static str, Vec<u8>), Problem> {
        let missing = || Problem::parameter("key", "missing; pass key or key_base64");
        self.some_key()?.ok_or_else(missing)
    }

    /// Works like [`key_of`](Self::key_of), but returns `None` if both parameters are missing.
    pub(crate) fn some_key(&self) -> Result<Option<(&'static str, Vec<u8>)>, Problem> {
        match (self.value_of("key"), self.value_of("key_base64")) {
            (Some(key), None) => Ok(Some(("key", key.to_vec()))),
            (None, Some(base64)) => match from_base64(base64) {
                Some(key) => Ok(Some(("key_base64", key))),
                None => Err(Problem::parameter("key_base64", "not base64")),
            },
            (None, None) => Ok(None),
            (Some(_), Some(_)) => {
                Err(Problem::parameter("key_base64", "pass either key or key_base64"))
            }
        }
    }

    /// Returns the value of a parameter that must be `true` or `false`. The default is false.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.text_of(name)? {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::parameter(name, "expected true or false")),
        }
    }

    /// Returns the value of a parameter that must be UTF-8. Returns `None` if the parameter is
    /// missing or empty.
    pub(crate) fn text_of(&self, name: &str) -> Result<Option<&str>, Problem> {
        match self.value_of(name) {
            None | Some([]) => Ok(None),
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(Problem::parameter(name, "not UTF-8")),
            },
        }
    }

    /// Returns the value whose name is given by a parameter. Returns `None` if the parameter is
    /// missing or empty.
    pub(crate) fn named_value<T: Named>(&self, name: &str) -> Result<Option<T>, Problem> {
        let Some(text) = self.text_of(name)? else { return Ok(None) };
        match T::named(text) {
            Some(value) => Ok(Some(value)),
            None => {
                let names: Vec<_> = T::names().collect();
                let (last, first) = names.split_last().unwrap_or((&"", &[]));
                let error = format!("expected {} or {last}", first.join(", "));
                Err(Problem::parameter(name, &error))
            }
        }
    }

    /// Returns the value of `limit`, which must be between 1 and `most`. The default is 100.
    pub(crate) fn limit_of(&self, most: usize) -> Result<usize, Problem> {
        match self.text_of("limit")?.map(str::parse) {
            None => Ok(100),
            Some(Ok(limit)) if (1..=most).contains(&limit) => Ok(limit),
            Some(_) => {
                let error = format!("expected a number from 1 to {most}");
                Err(Problem::parameter("limit", &error))
            }
        }
    }

    /// Returns the column whose name is in `sort`. Also returns true if `order` is `desc`.
    /// Returns `None` if `sort` is missing.
    pub(crate) fn sort_of<C: Named>(&self) -> Result<Option<(C, bool)>, Problem> {
        let descends = match self.text_of("order")? {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => return Err(Problem::parameter("order", "expected asc or desc")),
        };
        let by = self.named_value::<C>("sort")?;
        if by.is_none() && descends {
            return Err(Problem::parameter("order", "pass sort too"));
        }
        Ok(by.map(|by| (by, descends)))
    }
}

fn decode_value(text: &str) -> Vec<u8> {
    // In the encoding of forms, `+` represents a space.
    percent_decode(text.replace('+', " ").as_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_add_that_may_have_happened_does_not_count_as_added() {
        let failed = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no answer");
        let problem =
            failed().with_results(vec![Some(AddResult::New), Some(AddResult::Unknown), None]);
        assert_eq!(
            problem.failure.error,
            "no answer; 1 of 3 keys were added, and 1 may have been added"
        );
        assert_eq!(problem.changed, 1);
        let problem = failed().with_results(vec![Some(AddResult::New), None]);
        assert_eq!(problem.failure.error, "no answer; 1 of 2 keys were added");
    }

    #[test]
    fn parameters_are_bytes_and_the_wrong_ones_are_named() {
        let params = Params::parse(Some("key=%ff+a%2B&q=&&x"), &["key", "q", "x"]).unwrap();
        assert_eq!(params.value_of("key"), Some(&b"\xff a+"[..]));
        assert_eq!(params.value_of("x"), Some(&b""[..]));
        assert!(params.text_of("q").unwrap().is_none());
        let named = |result: Result<Option<&str>, Problem>| result.unwrap_err().failure.parameter;
        assert_eq!(named(params.text_of("key")).as_deref(), Some("key"));
        for (query, name) in [("kye=a", "kye"), ("q=1&q=2", "q")] {
            let problem = Params::parse(Some(query), &["key", "q"]).unwrap_err();
            assert_eq!(problem.failure.parameter.as_deref(), Some(name));
            assert!(problem.failure.error.starts_with(name), "{}", problem.failure.error);
        }
    }
}
