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

/// Returns a script of the previous program.
macro_rules! old {
    ($name:literal) => {
        super::scripts::Script::new(&[
            "#!lua flags=allow-oom",
            include_str!("../../../tests/stored/redis-1/alive.lua"),
            include_str!("../../../tests/stored/redis-1/clock.lua"),
            include_str!("../../../tests/stored/redis-1/shard.lua"),
            include_str!("../../../tests/stored/redis-1/rows.lua"),
            include_str!(concat!("../../../tests/stored/redis-1/", $name, ".lua")),
        ])
    };
}

/// A worker of the previous program sends its own scripts.
#[tokio::test]
async fn a_worker_of_the_previous_program_works_beside_a_new_one() {
    use crate::Add;
    use crate::types::error::EngineError;

    let Some(server) = Server::shared() else { return };
    let (engine, place) = engine(&server.url(""), &name("beside")).await;
    let shards = engine.shards_of(&place).expect("the queue is open");
    let shard = &shards[0];
    let scripts = [old!("add"), old!("claim"), old!("finish")];
    let run = async |number: usize, args: &[&[u8]]| -> Value {
        // It knows eleven Redis keys.
        let mut command = scripts[number].with(&shard.keys[..11]);
        command.arg(shard.queue.generation);
        args.iter().for_each(|arg| _ = command.arg(*arg));
        let ran: Result<Value, EngineError> = engine.run(shard, &scripts[number], &command).await;
        ran.unwrap_or_else(|fault| panic!("{}", fault.source))
    };
    let claim = async || {
        let failing = b"retry 0 0 0 8589934592 1 1 1";
        let answer = run(1, &[b"9", b"0", b"3600000000", b"1", failing, b"1", b"old"]).await;
        let (claimed, health) = values::claimed(answer).expect("it can be read");
        assert_eq!((claimed.damaged.len(), health), (0, values::Health::Good));
        claimed.items
    };
    let finish = async |key: &Key, epoch: i64| {
        run(2, &[b"1", &**key, epoch.to_string().as_bytes(), b"succeed", b""]).await
    };
    let add = async |key: &str, add: Add| {
        let asks = vec![Ask { key: key.into(), add, adds: 1 }];
        engine.add(&place, asks).await.expect("added")[0]
    };
    let entry = async |key: &str| {
        engine.look_up(&place, &key.into()).await.expect("answered").expect("the key has a state")
    };
    let hour = Duration::from_secs(3600);
    let done = Value::BulkString(b"1".to_vec());

    // Its add keeps the due time of a key that waits for debounced adds. The bound is lost.
    assert_eq!(add("a", Add::debounce(hour).at_most(3 * hour)).await, Added::New);
    let later = format!("{} earliest 1 0 0 0", 5 * hour.as_micros());
    assert_eq!(run(0, &[b"1", b"a", later.as_bytes()]).await, done, "coalesced");
    assert_eq!(add("a", Add::debounce(2 * hour).at_most(3 * hour)).await, Added::Coalesced);
    assert!(entry("a").await.due.is_some_and(|due| due <= hour), "not postponed");

    // It delivers a key whose bound is later than its due time.
    add("b", Add::debounce(Duration::from_micros(1)).at_most(hour)).await;
    while entry("b").await.state != State::Ready {
        tokio::task::yield_now().await;
    }
    let items = claim().await;
    assert_eq!(items.iter().map(|out| &*out.key).collect::<Vec<_>>(), [b"b"]);
    // The next run of the key in flight is debounced.
    add("b", Add::debounce(hour).at_most(2 * hour)).await;
    assert_eq!(finish(&items[0].key, items[0].epoch).await, done);
    let left = entry("b").await;
    assert_eq!((left.state, left.due.is_some_and(|due| due <= hour)), (State::Waiting, true));

    // It completes a run that was cancelled, and a later delivery is not cancelled.
    add("c", Add::now()).await;
    let items = claim().await;
    let cancelled = engine.cancel_running(&place, &"c".into()).await.expect("answered");
    assert_eq!(cancelled, CancelledRun::Cancelled);
    assert_eq!(finish(&items[0].key, items[0].epoch).await, done);
    add("c", Add::now()).await;
    let claimed = engine.claim(&place, ONE).await.expect("claimed");
    let held = vec![(claimed.items[0].key.clone(), claimed.items[0].epoch)];
    assert_eq!(engine.renew(&place, held, hour).await.expect("renewed"), [Renewed::Yes]);
}
