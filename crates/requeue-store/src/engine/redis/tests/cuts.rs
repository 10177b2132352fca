//! Cuts and delays the connection in the middle of each operation.

use requeue_servers::Language;

use super::*;
use crate::tests::cuts::{self, Verb};

fn asked(verb: Verb) -> Vec<u8> {
    let scripts = Scripts::new(CLOCK);
    let script = match verb {
        Verb::Add | Verb::AddAll => &scripts.add,
        Verb::Get => &scripts.claim,
        Verb::Succeed
        | Verb::Retry
        | Verb::RetryAfter
        | Verb::RequeueAfter
        | Verb::Release
        | Verb::GiveUp => &scripts.finish,
        Verb::Renew => &scripts.renew,
        Verb::Cancel => &scripts.cancel,
        Verb::Revive => &scripts.revive,
        Verb::Counts => &scripts.counts,
        Verb::Page => &scripts.walk,
        Verb::LookUp => &scripts.look_up,
        Verb::Listen => return b"BLPOP".to_vec(),
    };
    hash_of(script)
}

/// Returns the hash that each request to run the script contains.
pub(super) fn hash_of(script: &super::scripts::Script) -> Vec<u8> {
    match script.with(&[]).args_iter().nth(1) {
        Some(redis::Arg::Simple(hash)) => hash.to_vec(),
        _ => unreachable!("a script is run by its hash"),
    }
}

fn server() -> Option<cuts::Server> {
    let server = Server::shared()?;
    let (url, port) = (server.url(""), server.port());
    let by = |_: &str, port| format!("redis://127.0.0.1:{port}");
    Some(cuts::Server { language: Language::Redis, port, url, by: Box::new(by), asked })
}

cuts::tests!(server());
