//! Cuts and delays the connection in the middle of each operation.

use requeue_servers::Language;

use super::*;
use crate::tests::cuts::{self, Operation};

fn asked(operation: Operation) -> Vec<u8> {
    let sql = match operation {
        Operation::Add | Operation::AddAll => "select requeue.add_all_soon(",
        Operation::Get => " from requeue.claim(",
        Operation::Succeed
        | Operation::Retry
        | Operation::RetryAfter
        | Operation::RequeueAfter
        | Operation::Release
        | Operation::GiveUp => "select requeue.finish_soon(",
        Operation::Renew => " from requeue.renew(",
        Operation::Cancel => " from requeue.cancel(",
        Operation::CancelRunning => "select requeue.cancel_running(",
        Operation::Revive => " from requeue.revive(",
        Operation::RunNow => " from requeue.revive(",
        Operation::Pause => "select requeue.set_paused(",
        Operation::Counts => "select count(*)",
        Operation::Page => " limit ",
        Operation::LookUp => " and k.key = ",
        Operation::Listen => "listen ",
    };
    sql.into()
}

fn server() -> Option<cuts::Server> {
    let server = Server::shared()?;
    let (url, port) = (server.database(), server.port());
    let by = |url: &str, port| server.proxied(url, port);
    Some(cuts::Server { language: Language::Postgres, port, url, by: Box::new(by), asked })
}

cuts::tests!(server());
