//! Tests with the data of an earlier version.

use super::*;
use crate::tests::upgrade;

const STORED: &str = include_str!("../../../tests/stored/redis-1.txt");

/// Decodes a word of a stored command. `%` and two digits encode a byte, and `""` is empty.
fn decoded(word: &str) -> Vec<u8> {
    let mut parts = word.trim_matches('"').split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("two digits"));
        bytes.extend(&part.as_bytes()[2..]);
    }
    bytes
}

/// Starts a server with the data of version 1.
async fn stored() -> Option<Server> {
    let server = Server::start()?;
    let engine = Redis::connect(options(&server.url(""))).await.expect("the engine connects");
    for line in STORED.lines() {
        let words: Vec<Vec<u8>> = line.split(' ').map(decoded).collect();
        let mut command = redis::cmd(std::str::from_utf8(&words[0]).expect("a name"));
        words[1..].iter().for_each(|word| _ = command.arg(word));
        engine.nodes.run(0, &command, None).await.expect(line);
    }
    Some(server)
}

#[tokio::test]
async fn data_of_the_previous_program_is_used_as_it_is() {
    let Some(server) = stored().await else { return };
    upgrade::open(&server.url("")).await;
    let engine = Redis::connect(options(&server.url(""))).await.expect("the engine connects");
    upgrade::check_upgraded(&engine).await;
    assert_eq!(server.cli(&["get", "requeue:schema"]), "1", "the previous program can use it");
}
