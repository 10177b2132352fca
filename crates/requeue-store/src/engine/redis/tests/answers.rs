//! Tests answers of servers that cannot process a request. The servers are simulated, because a real server gives most
//! of these answers only at times that a test cannot control.

use ::redis::ConnectionAddr;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::types::error::Kind;

/// Two simulated servers of a cluster.
#[derive(Default)]
struct Pretended {
    ports: [u16; 2],
    /// The number of the server that has all slots, according to the maps of both servers.
    master: usize,
    /// The answer of each server to a script.
    says: [String; 2],
    /// The commands that each server has received. `connections` is the number of its connections.
    heard: [Vec<String>; 2],
    connections: [usize; 2],
}

type Both = Arc<Mutex<Pretended>>;

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

impl Pretended {
    async fn start() -> Both {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0"));
        let [one, other] = listeners;
        let listeners = [one.await.expect("a port is free"), other.await.expect("a port is free")];
        let both = Both::default();
        for (number, listener) in listeners.into_iter().enumerate() {
            lock(&both).ports[number] =
                listener.local_addr().expect("the listener is bound").port();
            let both = Arc::clone(&both);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    lock(&both).connections[number] += 1;
                    tokio::spawn(serve(number, stream, Arc::clone(&both)));
                }
            });
        }
        both
    }

    fn answer(&mut self, number: usize, words: &[String]) -> String {
        self.heard[number].push(words[0].clone());
        match (&*words[0], words.get(1).map(|word| &**word)) {
            ("HELLO", _) => "*4\r\n+mode\r\n+cluster\r\n+role\r\n+master\r\n".to_owned(),
            ("CLUSTER", Some("SLOTS")) => {
                let port = self.ports[self.master];
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n+127.0.0.1\r\n:{port}\r\n")
            }
            ("CLUSTER", _) => bulk("cluster_state:ok\r\ncluster_current_epoch:1\r\n"),
            ("EVALSHA", _) => self.says[number].clone(),
            _ => "+OK\r\n".to_owned(),
        }
    }
}

async fn serve(number: usize, stream: TcpStream, both: Both) {
    let (reads, mut writes): (OwnedReadHalf, OwnedWriteHalf) = stream.into_split();
    let mut reads = BufReader::new(reads);
    while let Some(words) = command(&mut reads).await {
        let answer = lock(&both).answer(number, &words);
        if writes.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn command(reads: &mut BufReader<OwnedReadHalf>) -> Option<Vec<String>> {
    let count = number(reads).await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(reads).await? + 2];
        reads.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}

/// Reads a line such as `*3` or `$5`, and returns its number.
async fn number(reads: &mut BufReader<OwnedReadHalf>) -> Option<usize> {
    let mut line = String::new();
    reads.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

/// Returns an engine that knows the first server as the master. `says` has the answer of each server to scripts.
async fn engine_of(says: [&str; 2]) -> (Redis, Place, Both) {
    let both = Pretended::start().await;
    lock(&both).says = says.map(|said| format!("{said}\r\n"));
    let url = format!("redis://127.0.0.1:{}", lock(&both).ports[0]);
    let engine = Redis::connect(options(&url)).await.expect("the engine connects");
    let of = Identity { name: "q".to_owned(), generation: 0, floor: 0, grouping: None };
    lock(&engine.queues).insert(0, Arc::new(names::shards(&Arc::new(of), 1)));
    let place = Place::new(0, "q", ReaddPolicy::Replace);
    (engine, place, both)
}

/// The answer to an add of a new key.
const NEW: &str = "$1\r\n0";

#[tokio::test]
async fn what_is_so_for_now_is_told_from_what_stays_so() {
    for (said, kind) in [
        ("-LOADING Redis is loading the dataset in memory", Kind::Absent),
        ("-CLUSTERDOWN The cluster is down", Kind::Absent),
        ("-READONLY You can't write against a read only replica.", Kind::Unable),
        ("-MASTERDOWN Link with MASTER is down", Kind::Absent),
        ("-TRYAGAIN Multiple keys request during rehashing of slot", Kind::Unable),
        ("-OOM command not allowed when used memory > 'maxmemory'.", Kind::Unable),
        ("-BUSY Redis is busy running a script.", Kind::Unable),
        ("-MISCONF Errors writing to the AOF file: No space left on device", Kind::Unable),
        ("-NOREPLICAS Not enough good replicas to write.", Kind::Unable),
        ("-ERR max number of clients reached", Kind::Absent),
        ("-NOSCRIPT No matching script. Please use EVAL.", Kind::Absent),
        ("-NOPERM this user has no permissions to run the 'hset' command", Kind::Refused),
        ("-WRONGTYPE Operation against a key holding the wrong kind of value", Kind::Refused),
        ("-CROSSSLOT Keys in request don't hash to the same slot", Kind::Refused),
        ("-ERR Error running script", Kind::Refused),
        // These answers do not show whether the command had an effect.
        ("$2\r\n00", Kind::Unsure),
        ("$1\r\n9", Kind::Unsure),
        (":0", Kind::Unsure),
        ("*0", Kind::Unsure),
        ("$-1", Kind::Unsure),
    ] {
        let (engine, place, _) = engine_of([said, NEW]).await;
        let fault = engine.add_keys(&place, asking("a")).await.expect_err(said);
        assert_eq!(fault.kind, kind, "{said}: {}", fault.source);
    }
}

#[tokio::test]
async fn who_can_not_serve_is_asked_who_can() {
    for said in [
        "-LOADING Redis is loading the dataset in memory",
        "-CLUSTERDOWN The cluster is down",
        "-READONLY You can't write against a read only replica.",
        "-MASTERDOWN Link with MASTER is down",
    ] {
        let (engine, place, both) = engine_of([said, NEW]).await;
        lock(&both).master = 1;
        let added = async {
            loop {
                if let Ok(added) = engine.add_keys(&place, asking("a")).await {
                    break added;
                }
            }
        };
        let added = timeout(Duration::from_secs(900), added).await.expect(said);
        assert_eq!(added, [Added::New]);
    }
}

#[tokio::test]
async fn who_is_sent_on_goes_there() {
    for (redirect, asking_first) in [("MOVED", false), ("ASK", true)] {
        let (engine, place, both) = engine_of(["", NEW]).await;
        let port = lock(&both).ports[1];
        lock(&both).says[0] = format!("-{redirect} 1 127.0.0.1:{port}\r\n");
        assert_eq!(engine.add_keys(&place, asking("a")).await.expect("added"), [Added::New]);
        let mut heard = lock(&both).heard[1].clone();
        heard.retain(|word| matches!(&**word, "ASKING" | "EVALSHA"));
        assert_eq!(heard[0] == "ASKING", asking_first, "{redirect}: {heard:?}");
    }
    // The number of redirections is limited, and their addresses must be valid.
    let (engine, place, both) = engine_of(["", ""]).await;
    let ports = lock(&both).ports;
    lock(&both).says = [1, 0].map(|other| format!("-MOVED 1 127.0.0.1:{}\r\n", ports[other]));
    let fault =
        engine.add_keys(&place, asking("a")).await.expect_err("no server accepts the command");
    assert_eq!(fault.kind, Kind::Absent, "{}", fault.source);
    for nowhere in ["-MOVED 1 nowhere", "-MOVED 1 127.0.0.1:port"] {
        lock(&both).says[0] = format!("{nowhere}\r\n");
        let fault = engine.add_keys(&place, asking("a")).await.expect_err(nowhere);
        assert_eq!(fault.kind, Kind::Absent, "{}", fault.source);
    }
}

#[tokio::test]
async fn a_connection_for_adds_that_was_given_up_on_is_made_anew() {
    let (engine, _, both) = engine_of([NEW, NEW]).await;
    let node = engine.nodes.holder_of(0).await.expect("the slot has a server");
    let connected = || lock(&both).connections[0];
    for (wire, more) in [(0, 0), (1, 1), (4, 1), (5, 0)] {
        node.connection(0).await.expect("connected");
        node.connection(wire).await.expect("connected");
        let before = connected();
        assert_eq!(node.is_there(wire).await, Some(true));
        node.connection(wire).await.expect("connected");
        assert_eq!(connected() - before, more, "connection {wire}");
    }
}

#[tokio::test]
async fn a_server_that_is_gone_for_good_is_forgotten() {
    let (engine, ..) = engine_of([NEW, NEW]).await;
    let node = engine.nodes.holder_of(0).await.expect("the slot has a server");
    // No server listens at this address.
    let gone = ConnectionAddr::Tcp("127.0.0.1".to_owned(), 1);
    assert!(!engine.nodes.remembers(&node, gone).await);
    let seed = node.info.addr().clone();
    assert!(engine.nodes.remembers(&node, seed).await);
}
