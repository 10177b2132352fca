//! Cuts and delays the connection in the middle of each operation.

use requeue_servers::Language;

use super::*;
use crate::tests::cuts::{self, Verb};

fn asked(verb: Verb) -> Vec<u8> {
    let sql = match verb {
        Verb::Add | Verb::AddAll => "select requeue.add_all_soon(",
        Verb::Get => " from requeue.claim(",
        Verb::Succeed
        | Verb::Retry
        | Verb::RetryAfter
        | Verb::RequeueAfter
        | Verb::Release
        | Verb::GiveUp => "select requeue.finish_soon(",
        Verb::Renew => " from requeue.renew(",
        Verb::Cancel => " from requeue.cancel(",
        Verb::Revive => " from requeue.revive(",
        Verb::Counts => "select count(*)",
        Verb::Page => " limit ",
        Verb::LookUp => " and k.key = ",
        Verb::Listen => "listen ",
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
