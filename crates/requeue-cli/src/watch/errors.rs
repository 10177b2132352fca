//! The messages about failed requests to the API server.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use kube::client::AuthError;
use kube::core::Status;
use kube::runtime::watcher;
use requeue::Time;
use requeue_kube::ObjectKey;

use crate::exit::{Exit, Refusal, error_chain};

/// The API server, and the source of the credentials for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    /// The name of the context in the kubeconfig. `None` in a pod without a kubeconfig.
    pub(crate) context: Option<String>,
    /// The program that fetches credentials, if the kubeconfig names one as an exec plugin.
    pub(crate) plugin: Option<String>,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)?;
        match (&self.context, &self.plugin) {
            (None, None) => Ok(()),
            (Some(context), None) => write!(f, " (context {context})"),
            (None, Some(plugin)) => write!(f, " (exec plugin {plugin})"),
            (Some(context), Some(plugin)) => {
                write!(f, " (context {context}, exec plugin {plugin})")
            }
        }
    }
}

impl Server {
    /// Returns the message to the user for a failed request. The message contains the answer of the server, or the
    /// reason why no answer came.
    pub(crate) fn refusal(&self, verb: &str, what: &str, error: &kube::Error) -> Refusal {
        let exit = match error {
            kube::Error::Api(status) => match status.code {
                401 | 403 | 404 => Exit::Denied,
                // The user's selector may be invalid, for example.
                400 => Exit::Usage,
                _ => Exit::Failure,
            },
            _ => Exit::Failure,
        };
        Refusal { exit, message: self.request_error(verb, what, error) }
    }

    fn request_error(&self, verb: &str, what: &str, error: &kube::Error) -> String {
        match error {
            kube::Error::Api(status) => format!("{verb} {what}: {}", server_answer(status)),
            error => format!("{verb} {what} at {self}: {}", explain_error(error)),
        }
    }

    /// Returns the reason why a watch has failed.
    pub(crate) fn why_not_watched(&self, what: &str, error: &watcher::Error) -> String {
        match error {
            watcher::Error::InitialListFailed(error) => self.request_error("list", what, error),
            watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
                self.request_error("watch", what, error)
            }
            watcher::Error::WatchError(status) => {
                format!("watch {what}: {}", server_answer(status))
            }
            error => format!("watch {what}: {}", error_chain(error)),
        }
    }
}

fn server_answer(Status { code, message, .. }: &Status) -> String {
    format!("{code}: {message}")
}

pub(crate) fn request_failure(what: &str, error: &(dyn Error + 'static)) -> Refusal {
    Refusal::failure(format!("{what}: {}", explain_error(error)))
}

/// Formats an error. Two errors of kube would print a whole struct, so only its content is used.
pub(crate) fn explain_error(error: &(dyn Error + 'static)) -> String {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(kube::Error::Api(status)) = error.downcast_ref() {
            return server_answer(status);
        }
        if let Some(AuthError::AuthExecRun { cmd, out }) = error.downcast_ref() {
            let said = String::from_utf8_lossy(&out.stderr);
            return format!("the exec plugin {cmd} failed ({}): {}", out.status, said.trim());
        }
        source = error.source();
    }
    error_chain(error)
}

/// Limits the messages about a request that is retried forever. A message is due when the reason changes, and once per
/// minute while it stays the same.
#[derive(Debug, Default)]
pub(crate) struct Reports(Option<(String, Time)>);

const AGAIN: Duration = Duration::from_secs(60);

impl Reports {
    pub(crate) fn is_due(&mut self, why: &str, now: Time) -> bool {
        let is_due = match &self.0 {
            Some((last, at)) => last != why || now.since(*at) >= AGAIN,
            None => true,
        };
        if is_due {
            self.0 = Some((why.to_owned(), now));
        }
        is_due
    }
}

/// Limits the messages about objects that cannot be decoded. One message per minute is due for each object, and 20 per
/// minute for all objects. A user who can create one such object can create many.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(HashMap<ObjectKey, Time>);

const REPORTED: usize = 20;

impl Unreadable {
    pub(crate) fn is_due(&mut self, key: &ObjectKey, now: Time) -> bool {
        // Old entries are removed, so that deleted objects do not use memory forever.
        self.0.retain(|_, at| now.since(*at) < AGAIN);
        let is_due = self.0.len() < REPORTED && !self.0.contains_key(key);
        if is_due {
            self.0.insert(key.clone(), now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{ExitStatus, Output};

    use requeue::clock::FakeClock;

    use super::*;

    #[test]
    fn a_lasting_error_is_reported_once_a_minute_and_when_its_reason_changes() {
        let (mut reports, clock) = (Reports::default(), FakeClock::new());
        let mut count = |why: &str, seconds: u64| {
            // The request is retried every five seconds.
            let tried = (0..seconds / 5).filter(|_| {
                let is_due = reports.is_due(why, clock.now());
                clock.advance(Duration::from_secs(5));
                is_due
            });
            tried.count()
        };
        assert_eq!(count("403: forbidden", 5), 1);
        assert_eq!(count("403: forbidden", 55), 0);
        assert_eq!(count("403: forbidden", 600), 10);
        assert_eq!(count("connection refused", 5), 1);
        assert_eq!(count("403: forbidden", 60), 1);
    }

    #[test]
    fn objects_that_cannot_be_decoded_are_reported_without_a_flood() {
        let (mut unreadable, clock) = (Unreadable::default(), FakeClock::new());
        let mut count = || {
            let keys = (0..100).map(|n| ObjectKey::new(Some("ns"), &n.to_string()));
            keys.filter(|key| unreadable.is_due(key, clock.now())).count()
        };
        assert_eq!((count(), count()), (REPORTED, 0));
        clock.advance(AGAIN);
        assert_eq!(count(), REPORTED);
    }

    fn server() -> Server {
        let (context, plugin) = (Some("kind".to_owned()), Some("aws".to_owned()));
        Server { url: "https://[::1]:6443/".to_owned(), context, plugin }
    }

    /// Returns one error of each kind that a watch can return.
    fn errors() -> Vec<watcher::Error> {
        let api = || kube::Error::Api(Box::new(Status::failure("no", "Forbidden").with_code(403)));
        let (status, stderr) = (ExitStatus::from_raw(0x100), b"token expired\n".to_vec());
        let out = Output { status, stdout: b"{".to_vec(), stderr };
        let plugin = AuthError::AuthExecRun { cmd: "aws".to_owned(), out: Box::new(out) };
        // A failed renewal of a token has this form.
        let service = kube::Error::Service(Box::new(kube::Error::Auth(plugin)));
        let io = kube::Error::ReadEvents(std::io::Error::other("connection reset"));
        let gone = Status::failure("too old", "Expired").with_code(410);
        vec![
            watcher::Error::InitialListFailed(api()),
            watcher::Error::WatchStartFailed(api()),
            watcher::Error::WatchFailed(service),
            watcher::Error::WatchFailed(io),
            watcher::Error::WatchError(Box::new(gone)),
            watcher::Error::NoResourceVersion,
        ]
    }

    #[test]
    fn errors_are_words_and_name_what_is_needed_to_find_the_cause() {
        let said: Vec<_> =
            errors().iter().map(|error| server().why_not_watched("cm", error)).collect();
        let there = "https://[::1]:6443/ (context kind, exec plugin aws)";
        assert_eq!(
            said[..5],
            [
                "list cm: 403: no".to_owned(),
                "watch cm: 403: no".to_owned(),
                format!(
                    "watch cm at {there}: the exec plugin aws failed (exit status: 1): token expired"
                ),
                format!("watch cm at {there}: Error reading events stream: connection reset"),
                "watch cm: 410: too old".to_owned(),
            ]
        );
        for said in said {
            assert!(!said.contains(['{', '\n']) && !said.contains("Some("), "{said}");
        }
    }
}
