//! Splits the byte streams of server protocols into requests and answers.

use std::collections::HashMap;

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// The protocol of PostgreSQL, without TLS.
    Postgres,
    /// The protocol of Redis, without TLS.
    Redis,
}

/// One or more messages from a client.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// A request, which has one answer, and the statement or command in it.
    Request(Vec<u8>, Vec<u8>),
    /// A message without a separate answer.
    Aside(Vec<u8>),
}

/// The stream of messages from the client of one connection.
#[derive(Debug)]
pub(crate) struct Requests {
    language: Language,
    bytes: Vec<u8>,
    /// The number of complete messages of a request that is not complete yet.
    whole: usize,
    /// For PostgreSQL, true after the first message, which has no type.
    has_begun: bool,
    /// Prepared statements by name.
    statements: HashMap<Vec<u8>, Vec<u8>>,
}

impl Requests {
    pub(crate) fn new(language: Language) -> Self {
        let statements = HashMap::new();
        Self { language, bytes: Vec::new(), whole: 0, has_begun: false, statements }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next request or message, if it is complete.
    pub(crate) fn next(&mut self) -> Option<Sent> {
        if self.language == Language::Redis {
            let request: Vec<u8> = self.bytes.drain(..redis_value(&self.bytes)?).collect();
            return Some(Sent::Request(request.clone(), request));
        }
        loop {
            let rest = &self.bytes[self.whole..];
            let length = postgres_message(rest, self.has_begun)?;
            let kind = if self.has_begun { rest[0] } else { 0 };
            self.has_begun = true;
            self.whole += length;
            // These messages are a password or the end of the session. Any other request continues until it asks for
            // its answer.
            let is_aside = self.whole == length && matches!(kind, b'p' | b'X');
            if !is_aside && !matches!(kind, 0 | b'Q' | b'S') {
                continue;
            }
            let message: Vec<u8> = self.bytes.drain(..std::mem::take(&mut self.whole)).collect();
            if is_aside {
                return Some(Sent::Aside(message));
            }
            let asked = if kind == 0 { Vec::new() } else { self.sql(&message) };
            return Some(Sent::Request(message, asked));
        }
    }

    /// Returns the statement that the request executes, if any.
    fn sql(&mut self, request: &[u8]) -> Vec<u8> {
        let mut rest = request;
        let mut sql = Vec::new();
        while let Some(length) = postgres_message(rest, true) {
            let (kind, mut words) = (rest[0], rest[5..length].split(|&byte| byte == 0));
            let mut word = || words.next().unwrap_or_default().to_vec();
            match kind {
                b'Q' => sql = word(),
                b'P' => {
                    let (name, text) = (word(), word());
                    self.statements.insert(name, text);
                }
                b'B' => {
                    let (_portal, name) = (word(), word());
                    sql = self.statements.get(&name).cloned().unwrap_or_default();
                }
                _ => {}
            }
            rest = &rest[length..];
        }
        sql
    }
}

/// The stream of messages from the server of one connection.
#[derive(Debug)]
pub(crate) struct Answers {
    language: Language,
    bytes: Vec<u8>,
}

impl Answers {
    pub(crate) fn new(language: Language) -> Self {
        Self { language, bytes: Vec::new() }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete message, and true if it is the last message of an answer.
    pub(crate) fn next(&mut self) -> Option<(Vec<u8>, bool)> {
        let (length, is_last) = match self.language {
            Language::Redis => (redis_value(&self.bytes)?, true),
            Language::Postgres => (postgres_message(&self.bytes, true)?, self.bytes[0] == b'Z'),
        };
        Some((self.bytes.drain(..length).collect(), is_last))
    }
}

/// Returns the length of the first value, if it is complete.
fn redis_value(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")? + 2;
    let number = || -> Option<i64> { str::from_utf8(&bytes[1..end - 2]).ok()?.parse().ok() };
    match bytes[0] {
        b'$' => match usize::try_from(number()?) {
            Ok(length) => Some(end + length + 2).filter(|&end| end <= bytes.len()),
            // A null value has no content.
            Err(_) => Some(end),
        },
        b'*' => (0..number()?).try_fold(end, |at, _| Some(at + redis_value(&bytes[at..])?)),
        _ => Some(end),
    }
}

/// Returns the length of the first message, if it is complete.
fn postgres_message(bytes: &[u8], has_type: bool) -> Option<usize> {
    let at = usize::from(has_type);
    let length = bytes.get(at..at + 4)?.try_into().ok()?;
    let end = at + u32::from_be_bytes(length) as usize;
    Some(end).filter(|&end| end <= bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len() + 4).expect("the text is short").to_be_bytes();
        [&[kind], &length[..], text].concat()
    }

    /// Parses `bytes`, one byte at a time.
    fn requests(language: Language, bytes: &[u8]) -> Vec<Sent> {
        let mut requests = Requests::new(language);
        bytes
            .iter()
            .filter_map(|&byte| {
                requests.take(&[byte]);
                requests.next()
            })
            .collect()
    }

    #[test]
    fn requests_of_postgresql_end_where_their_answers_begin() {
        let begin = message(0, b"user\0me\0\0").split_off(1);
        let password = message(b'p', b"secret\0");
        let prepare =
            [message(b'P', b"s1\0select 7\0\0\0"), message(b'D', b"Ss1\0"), message(b'S', b"")];
        let execute =
            [message(b'B', b"\0s1\0\0\0"), message(b'E', b"\0\0\0\0\0"), message(b'S', b"")];
        let simple = message(b'Q', b"listen x\0");
        let end = message(b'X', b"");
        let (prepare, execute) = (prepare.concat(), execute.concat());
        let all = [&begin[..], &password, &prepare, &execute, &simple, &end].concat();
        let expected = [
            Sent::Request(begin, Vec::new()),
            Sent::Aside(password),
            Sent::Request(prepare, Vec::new()),
            Sent::Request(execute, b"select 7".to_vec()),
            Sent::Request(simple, b"listen x".to_vec()),
            Sent::Aside(end),
        ];
        assert_eq!(requests(Language::Postgres, &all), expected);
    }

    #[test]
    fn values_of_redis_end_where_they_say() {
        let values: [&[u8]; 6] = [
            b"+OK\r\n",
            b":7\r\n",
            b"$-1\r\n",
            b"$4\r\na\r\nb\r\n",
            b"*-1\r\n",
            b"*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
        ];
        let expected = values.map(|value| Sent::Request(value.to_vec(), value.to_vec()));
        assert_eq!(requests(Language::Redis, &values.concat()), expected);
    }

    #[test]
    fn an_answer_of_postgresql_ends_when_the_server_is_ready() {
        let mut answers = Answers::new(Language::Postgres);
        answers.take(&[message(b'D', b"row"), message(b'Z', b"I"), message(b'A', b"n")].concat());
        let ends: Vec<bool> = std::iter::from_fn(|| answers.next()).map(|next| next.1).collect();
        assert_eq!(ends, [false, true, false]);
    }
}
