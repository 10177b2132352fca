//! Tests invalid rows, and places without a row. The tests write them directly.

use fastrand::Rng;

use super::*;
use crate::engine::Finish;
use crate::tests::damage::{BAD, Kind, Scene};
use crate::types::inspect::State;

/// The positions of doubles in a row whose worker has no name, or a name of one byte.
const DOUBLES: [usize; 13] = [0, 8, 25, 33, 41, 67, 68, 75, 76, 84, 85, 92, 93];
/// The positions of the priorities, the name and its length, and the flag for parked keys.
const BYTES: [usize; 6] = [24, 57, 58, 59, 83, 84];
const SIZES: [usize; 17] = [0, 1, 8, 15, 16, 24, 25, 26, 58, 59, 60, 61, 92, 93, 100, 101, 108];

fn double(rng: &mut Rng) -> f64 {
    const DOUBLES: [f64; 12] = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -1.0,
        -0.0,
        0.0,
        0.5,
        1.0,
        9_007_199_254_740_991.0,
        9_007_199_254_740_992.0,
        1e300,
        f64::MIN_POSITIVE,
    ];
    if rng.u8(..4) == 0 { f64::from_bits(rng.u64(..)) } else { DOUBLES[rng.usize(..DOUBLES.len())] }
}

/// Returns the row after a random change of one kind.
fn malformed(rng: &mut Rng, row: &[u8]) -> Vec<u8> {
    let mut row = row.to_vec();
    match rng.u8(..6) {
        0 => row.truncate(rng.usize(..=row.len())),
        1 => row.extend((0..rng.usize(1..60)).map(|_| rng.u8(..))),
        2 => row = (0..SIZES[rng.usize(..SIZES.len())]).map(|_| rng.u8(..)).collect(),
        3 => {
            let at = BYTES[rng.usize(..BYTES.len())];
            if let Some(byte) = row.get_mut(at) {
                *byte = rng.u8(..);
            }
        }
        4 => row = b"not a row".repeat(rng.usize(1..20)),
        _ => {
            let fitting: Vec<_> = DOUBLES.iter().filter(|at| **at + 8 <= row.len()).collect();
            let at = *fitting[rng.usize(..fitting.len())];
            row[at..at + 8].copy_from_slice(&double(rng).to_be_bytes());
        }
    }
    row
}

async fn run(engine: &Redis, shard: &Shard, words: &[&[u8]]) -> Value {
    let mut command = redis::Cmd::new();
    words.iter().for_each(|word| _ = command.arg(*word));
    engine.nodes.run_command(shard.slot, &command).await.expect("the command runs")
}

#[tokio::test]
async fn a_malformed_row_harms_no_other_key() {
    let Some(server) = Server::shared() else { return };
    let (mut damaged, mut named) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng::with_seed(seed);
        let (engine, mut place) = engine(&server.url(""), &name("damaged")).await;
        place.worker = "w".into();
        let engine = Arc::new(engine);
        let kind = rng.choice(Kind::ALL).expect("the list is not empty");
        let scene = Scene::new(Arc::clone(&engine) as _, place.clone(), kind).await;

        let shards = engine.shards_of(&place).expect("the queue is open");
        let shard = &shards[0];
        let Value::BulkString(row) =
            run(&engine, shard, &[b"HGET", shard.rows().as_bytes(), BAD.as_bytes()]).await
        else {
            panic!("the key has no row");
        };
        let mut how = format!("seed {seed}, {kind:?}");
        if rng.u8(..8) > 0 {
            let row = malformed(&mut rng, &row);
            run(&engine, shard, &[b"HSET", shard.rows().as_bytes(), BAD.as_bytes(), &row]).await;
            how += &format!(", row {}", row.escape_ascii());
        }
        for set in &shard.keys[1..7] {
            let (set, key) = (set.as_bytes(), BAD.as_bytes());
            let score = ["-inf", "inf", "0", "-5", "1e300", "1.5", "1"][rng.usize(..7)];
            match rng.u8(..20) {
                0 => {
                    run(&engine, shard, &[b"ZADD", set, score.as_bytes(), key]).await;
                    how += &format!(", in {} at {score}", set.escape_ascii());
                }
                1 => {
                    run(&engine, shard, &[b"ZREM", set, key]).await;
                    how += &format!(", not in {}", set.escape_ascii());
                }
                _ => {}
            }
        }
        if rng.u8(..12) == 0 {
            run(&engine, shard, &[b"HDEL", shard.rows().as_bytes(), BAD.as_bytes()]).await;
            how += ", without a row";
        }
        if rng.u8(..3) > 0 {
            let (is_damaged, reported) = scene.check(&how).await;
            assert!(is_damaged || reported.is_empty(), "{how}: {reported:?}");
            damaged += u32::from(is_damaged);
            named += u32::from(!reported.is_empty());
        }
        scene.check_end(&mut rng, &how).await;
    }
    assert!(damaged > 100 && named > 50, "{damaged} were damaged, {named} reported");
}

/// One script decodes many rows in the same way as the other scripts, and says of each row whether it can be read.
#[tokio::test]
async fn scripts_and_this_program_agree_on_each_row() {
    let Some(server) = Server::shared() else { return };
    let (engine, place) = engine(&server.url(""), &name("agreed")).await;
    let shards = engine.shards_of(&place).expect("the queue is open");
    let reads = engine.nodes.scripts.reads();
    let (mut rng, mut readable) = (Rng::with_seed(7), 0);
    for _ in 0..40 {
        let rows: Vec<_> = (0..100).map(|_| named(&mut rng)).collect();
        let mut command = reads.on(&shards[0]);
        rows.iter().for_each(|row| _ = command.arg(&**row));
        let said =
            engine.nodes.run_script(shards[0].slot, &command).await.expect("the script runs");
        let said = values::to_digits(said, rows.len()).expect("a digit for each");
        for (row, said) in rows.iter().zip(said) {
            let read = values::read_row(row);
            assert_eq!(said == b'1', read.is_ok(), "{}: {read:?}", row.escape_ascii());
            readable += u32::from(said == b'1');
        }
    }
    assert!((400..3600).contains(&readable), "{readable} of 4000 can be read");
}

/// Returns the row of a key in flight with a random name. The row may have the part for failures and the bound, and may
/// be changed.
fn named(rng: &mut Rng) -> Vec<u8> {
    let name: Vec<u8> = match rng.u8(..6) {
        0 => (0..rng.usize(..4)).map(|_| rng.u8(..)).collect(),
        1 => vec![b'a'; rng.usize(98..103)],
        2 => {
            let mut name = rng.char(..).to_string().into_bytes();
            name.truncate(rng.usize(..=name.len()));
            name
        }
        // These bytes are near the limits of UTF-8 sequences.
        3 => {
            let leads = [0x1f, 0x20, 0x7e, 0x7f, 0xc1, 0xc2, 0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5];
            let tails = [0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0];
            let tails = (0..rng.usize(..4)).map(|_| tails[rng.usize(..8)]).collect::<Vec<u8>>();
            [&[leads[rng.usize(..leads.len())]], &*tails].concat()
        }
        _ => rng.char('\u{0}'..'\u{3000}').to_string().into_bytes(),
    };
    let epoch = if rng.u8(..8) == 0 { 0.0_f64 } else { 5.0 };
    let mut row = [1.0_f64, 1.0].map(f64::to_be_bytes).concat();
    row.extend([0; 9]);
    row.extend([epoch, 1.0, 1.0].map(f64::to_be_bytes).concat());
    row.extend([0; 9]);
    row.push(u8::try_from(name.len()).expect("the length fits"));
    row.extend(name);
    if rng.bool() {
        row.extend([0; 24]);
        let flag = rng.u8(..9);
        row.push(flag);
        row.extend([0; 8]);
        if flag & 2 > 0 && rng.u8(..8) > 0 {
            row.extend([0; 8]);
        }
        for _ in 0..if flag & 4 > 0 { 3 } else { 0 } {
            let length = rng.u8(..4);
            row.extend([0, length]);
            row.extend(vec![b'0'; length.into()]);
        }
        row.extend(b"no".repeat(rng.usize(..9)));
    }
    if rng.u8(..4) == 0 { malformed(rng, &row) } else { row }
}

/// An operator has repaired a row manually and has added a place for its key. The key is still marked as set aside.
#[tokio::test]
async fn a_mended_row_leaves_no_trace_when_its_run_ends() {
    let Some(server) = Server::shared() else { return };
    for is_claimed in [false, true] {
        let (engine, place) = engine(&server.url(""), &name("mended")).await;
        let shards = engine.shards_of(&place).expect("the queue is open");
        let aside = shards[0].keys[10].as_bytes();
        engine.add_keys(&place, asking("a")).await.expect("added");
        if !is_claimed {
            run(&engine, &shards[0], &[b"ZADD", aside, b"0", b"a"]).await;
        }
        let out = engine.claim_keys(&place, ONE).await.expect("claimed").items.remove(0);
        if is_claimed {
            run(&engine, &shards[0], &[b"ZADD", aside, b"0", b"a"]).await;
        } else {
            let counts = engine.count_keys(&place).await.expect("counted");
            assert_eq!(counts, StateCounts { in_flight: 1, ..StateCounts::default() });
        }
        let end = End { key: out.key, epoch: out.epoch, how: Finish::Succeed };
        assert_eq!(engine.finish_deliveries(&place, vec![end]).await.expect("finished"), [true]);
        let counts = engine.count_keys(&place).await.expect("counted");
        assert_eq!(counts, StateCounts::default(), "{is_claimed}");
    }
}

/// Rows of version 1 do not have the time of the last failure.
#[tokio::test]
async fn a_parked_row_of_version_1_is_read_and_revived() {
    let Some(server) = Server::shared() else { return };
    let (engine, place) = engine(&server.url(""), &name("version 1")).await;
    engine.add_keys(&place, asking("a")).await.expect("added");
    let shards = engine.shards_of(&place).expect("the queue is open");
    let shard = &shards[0];
    let mut row = [0_f64, 5.0].map(f64::to_be_bytes).concat();
    row.extend([0; 9]);
    row.extend([0; 34]);
    row.extend([0, 0, 0, 3, 0, 0, 0, 3]);
    row.extend([0; 16]);
    row.push(1);
    row.extend([0; 8]);
    row.extend(b"no route");
    run(&engine, shard, &[b"HSET", shard.rows().as_bytes(), b"a", &row]).await;
    repairing::repair_shard(&engine.nodes, &place.name, shard).await.expect("it is repaired");
    let key = Key::from("a");
    let entry = engine.look_up(&place, &key).await.expect("read").expect("it is there");
    assert_eq!((entry.state, entry.failures, entry.failed), (State::Parked, 3, None));
    assert_eq!(entry.error.as_deref(), Some("no route"));
    // The script must also be able to read the row.
    let added = engine.add_keys(&place, asking("a")).await.expect("added");
    assert_eq!(added, [Added::Revived]);
}

/// Claims never find this row, but a repair does.
#[tokio::test]
async fn a_damaged_row_without_a_place_is_set_aside() {
    let Some(server) = Server::shared() else { return };
    let (engine, place) = engine(&server.url(""), &name("unplaced")).await;
    engine.add_keys(&place, asking("good")).await.expect("added");
    let shards = engine.shards_of(&place).expect("the queue is open");
    let shard = &shards[0];
    run(&engine, shard, &[b"HSET", shard.rows().as_bytes(), b"bad", b"short"]).await;
    repairing::repair_shard(&engine.nodes, &place.name, shard)
        .await
        .expect("the shard is repaired");
    let counts = engine.count_keys(&place).await.expect("counted");
    assert_eq!(counts, StateCounts { ready: 1, damaged: 1, ..counts });
    let page =
        engine.read_page(&place, Some(State::Damaged), None, 9).await.expect("the page is read");
    assert_eq!(page[0].error.as_deref(), Some("the row has 5 bytes"));

    // After a manual repair of the row, either the operator adds the key, or requeue repairs the shard.
    let row = run(&engine, shard, &[b"HGET", shard.rows().as_bytes(), b"good"]).await;
    let Value::BulkString(row) = row else { panic!("the key has no row") };
    for is_added in [false, true] {
        run(&engine, shard, &[b"HSET", shard.rows().as_bytes(), b"bad", &row]).await;
        run(&engine, shard, &[b"ZREM", shard.keys[2].as_bytes(), b"bad"]).await;
        run(&engine, shard, &[b"ZADD", shard.keys[10].as_bytes(), b"0", b"bad"]).await;
        match is_added {
            true => drop(engine.add_keys(&place, asking("bad")).await.expect("added")),
            false => {
                let walked = repairing::repair_shard(&engine.nodes, &place.name, shard);
                walked.await.expect("the shard is repaired");
            }
        }
        let counts = engine.count_keys(&place).await.expect("counted");
        assert_eq!(counts, StateCounts { ready: 2, ..counts }, "{is_added}");
        assert_eq!(counts.damaged, 0, "{is_added}");
    }
}
