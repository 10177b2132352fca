//! Workers in several processes, a Redis server, and an origin that answers when the test permits it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use requeue_servers::{Redis, did_not_run};
use requeue_store::{Queue, Store};

/// The website. It counts requests, and answers each one with the number of requests for its path.
struct Origin {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// The paths of all requests.
    requests: Vec<String>,
    is_open: bool,
    /// All answers are failures.
    is_down: bool,
}

impl Origin {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::<(Mutex<State>, Condvar)>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.expect("a connection"), Arc::clone(&shared));
                // The client may have been killed.
                thread::spawn(move || drop(answer(stream, &state)));
            }
        });
        Self { address, state }
    }

    /// Answers all requests from now on, and those that wait.
    fn open(&self) {
        self.state.0.lock().expect("no panic").is_open = true;
        self.state.1.notify_all();
    }

    fn set_down(&self, is_down: bool) {
        self.state.0.lock().expect("no panic").is_down = is_down;
    }

    /// Waits for this number of requests, and returns their paths.
    fn wait_for(&self, count: usize) -> Vec<String> {
        let state = self.state.0.lock().expect("no panic");
        let state = self.state.1.wait_while(state, |state| state.requests.len() < count);
        state.expect("no panic").requests.clone()
    }
}

fn answer(stream: TcpStream, (state, changed): &(Mutex<State>, Condvar)) -> std::io::Result<()> {
    let mut lines = BufReader::new(&stream).lines();
    let first = lines.next().expect("a request")?;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let path = first.split(' ').nth(1).expect("a path").to_owned();
    let (body, is_down) = {
        let mut state = state.lock().expect("no panic");
        state.requests.push(path.clone());
        let number = state.requests.iter().filter(|other| **other == path).count();
        changed.notify_all();
        let state = changed.wait_while(state, |state| !state.is_open).expect("no panic");
        (format!("{path} {number}"), state.is_down)
    };
    let status = match &*path {
        _ if is_down => "503 Service Unavailable",
        "/gone" => "404 Not Found",
        _ => "200 OK",
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    (&stream).write_all((head + &body).as_bytes())
}

/// The program, on one Redis server.
struct Program<'s> {
    redis: &'s Redis,
    origin: Origin,
}

impl<'s> Program<'s> {
    fn new(redis: &'s Redis) -> Self {
        Self { redis, origin: Origin::start() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cache-warmer"));
        command.args(args).env("REDIS_URL", self.redis.url(""));
        command
    }

    fn call(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    fn warm(&self, args: &[&str]) -> String {
        let done = self.call(&[&["warm"], args].concat());
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).expect("text")
    }

    fn work(&self, args: &[&str]) -> Worker {
        let origin = format!("http://{}", self.origin.address);
        let mut command = self.command(&["work", "--origin", &origin]);
        Worker(command.args(args).spawn().expect("the program starts"))
    }

    async fn queue(&self) -> Queue {
        let store = Store::connect(&self.redis.url("")).await.expect("the server is up");
        store.queue("pages").must_exist().open().await.expect("the queue exists")
    }

    /// Waits until this number of pages waits for the next fetch, and no other page is in the queue.
    async fn wait_until_waiting(&self, pages: u64) {
        let queue = self.queue().await;
        until(async || {
            let counts = queue.counts().await.expect("an answer");
            (counts.ready, counts.waiting, counts.in_flight) == (0, pages, 0)
        })
        .await;
    }
}

/// A worker, which is killed in the end.
struct Worker(Child);

impl Worker {
    fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it was started");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Waits for a state of the queue or the cache that no event reports.
async fn until(is_so: impl AsyncFn() -> bool) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn many_adds_of_a_page_are_one_fetch() {
    let Some(redis) = Redis::start() else { return };
    let program = Program::new(&redis);
    assert_eq!(program.warm(&["/a"; 100]), "adds: 100, new: 1\n");
    let missed = program.call(&["get", "/a"]);
    assert_eq!((missed.status.code(), &*missed.stdout), (Some(1), &b""[..]));

    let _workers = [(); 2].map(|()| program.work(&["--ttl", "3600"]));
    program.origin.wait_for(1);
    // These adds come during the run, and cause one more run, which finds a fresh page.
    program.warm(&["/a"; 100]);
    program.origin.open();
    program.wait_until_waiting(1).await;
    assert_eq!(program.origin.wait_for(1), ["/a"]);
    assert_eq!(program.call(&["get", "/a"]).stdout, b"/a 1");

    // A page that has changed is fetched again, although the cached one is fresh.
    program.warm(&["--changed", "/a"]);
    until(async || program.call(&["get", "/a"]).stdout == b"/a 2").await;
}

#[tokio::test]
async fn the_page_of_a_killed_worker_is_fetched_by_the_other() {
    let Some(redis) = Redis::start() else { return };
    let program = Program::new(&redis);
    program.warm(&["/a"]);
    let mut workers = [(); 2].map(|()| program.work(&["--lease", "2"]));
    program.origin.wait_for(1);
    let queue = program.queue().await;
    let entry = queue.look_up("/a").await.expect("an answer").expect("the key is in flight");
    let name = entry.worker.expect("a worker has the key");
    let is_holder = |worker: &&mut Worker| name.ends_with(&format!(":{}", worker.0.id()));
    workers.iter_mut().find(is_holder).expect("one of the two").kill();

    program.origin.wait_for(2);
    program.origin.open();
    until(async || program.call(&["get", "/a"]).stdout.starts_with(b"/a ")).await;
}

#[tokio::test]
async fn a_page_is_fetched_again_before_it_expires() {
    let Some(redis) = Redis::start() else { return };
    let program = Program::new(&redis);
    program.origin.open();
    let ttl = Duration::from_secs(3600);
    let _worker = program.work(&["--ttl", "3600"]);
    program.warm(&["/a"]);
    program.wait_until_waiting(1).await;
    let entry = program.queue().await.look_up("/a").await.expect("an answer");
    // The page expires an hour after its write, and its next run is due a fifth of that time earlier.
    let due = entry.and_then(|entry| entry.due).expect("it waits for its next run");
    assert!(due <= ttl - ttl / 5, "{due:?}");

    // The run that is due fetches the page, and the page in the cache is then the new one.
    redis.cli(&["PEXPIRE", "cache:{/a}", "60000"]);
    program.queue().await.run_now_keys(["/a"]).await.expect("an answer");
    program.origin.wait_for(2);
    until(async || program.call(&["get", "/a"]).stdout == b"/a 2").await;
}

#[tokio::test]
async fn an_outage_of_the_origin_loses_no_page() {
    let Some(redis) = Redis::start() else { return };
    let program = Program::new(&redis);
    program.origin.open();
    program.origin.set_down(true);
    program.warm(&["/a"]);
    // The first failures are those of a worker with short backoffs.
    let store = Store::connect(&redis.url("")).await.expect("the server is up");
    let brief = store.queue("pages").backoff(Duration::from_millis(1), Duration::from_secs(300));
    let worker = brief.open().await.expect("the queue exists");
    for _ in 0..10 {
        worker.get().await.expect("it is open").retry("down").await.expect("an answer");
    }
    drop(worker);

    let queue = program.queue().await;
    let _worker = program.work(&[]);
    program.origin.wait_for(1);
    let look_up = async || queue.look_up("/a").await.expect("an answer").expect("it is kept");
    until(async || look_up().await.failures > 10).await;
    assert_eq!(look_up().await.state, requeue_store::State::Waiting);
    program.origin.set_down(false);
    // The test does not wait for the end of the backoff.
    assert_eq!(queue.run_now_keys(["/a"]).await.expect("an answer"), [true]);
    until(async || program.call(&["get", "/a"]).stdout == b"/a 2").await;
}

#[tokio::test]
async fn popular_pages_come_first_and_pages_that_are_gone_leave_the_queue() {
    let Some(redis) = Redis::start() else { return };
    let program = Program::new(&redis);
    program.warm(&["/first"]);
    let _worker = program.work(&["--jobs", "1"]);
    program.origin.wait_for(1);
    program.warm(&["/gone"]);
    program.warm(&["--popular", "/popular"]);
    program.origin.open();
    assert_eq!(program.origin.wait_for(3), ["/first", "/popular", "/gone"]);
    program.wait_until_waiting(2).await;
}

#[test]
fn the_demonstration_ends_by_itself() {
    let Some(redis) = Redis::start() else { return };
    if Command::new("python3").arg("--version").output().is_err() {
        return did_not_run("python3 is missing");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/run.sh");
    let mut script = Command::new(script);
    script.env("REDIS_URL", redis.url("")).env("CACHE_WARMER", env!("CARGO_BIN_EXE_cache-warmer"));
    let done = script.output().expect("the script starts");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("This is product 2.\n"), "{said}");
    assert!(said.ends_with("Product 2 was fetched again.\n"), "{said}");
}

#[test]
fn bad_input_is_named() {
    let program = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cache-warmer"));
        let done = command.args(args).env("REDIS_URL", "redis://127.0.0.1:1").output();
        let done = done.expect("the program starts");
        (done.status.code(), String::from_utf8(done.stderr).expect("text"))
    };
    for (args, part) in [
        (&["warm", "products"][..], "'products' for '<PATH>...': a path begins with /"),
        (&["work", "--origin", "https://a/b"], "'https://a/b' for '--origin <URL>': the origin is"),
        (&["work", "--origin", "http://a", "--ttl", "0"], "'0' for '--ttl <SECONDS>': use 1 to"),
        (&["--redis", "localhost", "warm", "/a"], "localhost"),
    ] {
        let (code, said) = program(args);
        assert!(code != Some(0) && said.contains(part), "{said}");
    }
    let (code, said) = program(&["warm", "/a"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("127.0.0.1:1: ") && said.contains("refused"), "{said}");
}
