//! Cuts and delays the connection in the middle of each operation.

use requeue_servers::Language;

use super::*;
use crate::tests::cuts::{self, Operation};

fn asked(operation: Operation) -> Vec<u8> {
    let scripts = Scripts::new(CLOCK);
    let script = match operation {
        Operation::Add | Operation::AddAll => &scripts.add,
        Operation::Get => &scripts.claim,
        Operation::Succeed
        | Operation::Retry
        | Operation::RetryAfter
        | Operation::RequeueAfter
        | Operation::Release
        | Operation::GiveUp => &scripts.finish,
        Operation::Renew => &scripts.renew,
        Operation::Cancel => &scripts.cancel,
        Operation::CancelRunning => &scripts.cancel_running,
        Operation::Revive | Operation::RunNow => &scripts.revive,
        Operation::Pause => &scripts.pause,
        Operation::Counts => &scripts.counts,
        Operation::Page => &scripts.walk,
        Operation::LookUp => &scripts.look_up,
        Operation::Listen => return b"BLPOP".to_vec(),
    };
    hash_of(script)
}

/// Returns the hash of the script. Each request that runs the script contains this hash.
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
