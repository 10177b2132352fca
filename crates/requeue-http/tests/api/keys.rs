//! `/api/v1/keys` and `/api/v1/key`.

use std::collections::BTreeSet;
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::{Completion, Item, Pace, Queue, ReaddPolicy};
use requeue_http::{Detail, History, Run, Site};
use serde_json::{Value, json};

use crate::client::get;
use crate::{Keys, Served, queue};

fn names(answer: &Value) -> Vec<&str> {
    let keys = answer["keys"].as_array().expect("a list");
    keys.iter().map(|row| row["key"].as_str().expect("text")).collect()
}

/// Returns all keys of a walk, and the number of its requests.
fn walk(served: &Served, query: &str) -> (Vec<String>, usize) {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for requests in 1..1000 {
        let path = format!("/api/v1/keys?{query}&cursor={cursor}");
        let page = get(served.address, &path).json();
        found.extend(names(&page).iter().map(|&name| name.to_owned()));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return (found, requests),
        }
    }
    panic!("the walk does not end");
}

/// A key in each state.
fn states(queue: &Keys, clock: &FakeClock) -> Vec<Item<'static, Vec<u8>>> {
    let keys = ["again", "running", "failing", "ready"];
    queue.add_all(keys.map(|key| key.as_bytes().to_vec()));
    let again = queue.try_get().map(Item::into_owned).expect("a key is ready");
    queue.add(b"again".to_vec());
    clock.advance(Duration::from_secs(30));
    let running = queue.try_get().map(Item::into_owned).expect("a key is ready");
    clock.advance(Duration::from_secs(30));
    queue
        .try_get()
        .expect("a key is ready")
        .complete(Completion::RetryAfter(Duration::from_secs(90)));
    queue.add_after(b"waiting".to_vec(), Duration::from_secs(600));
    vec![again, running]
}

#[test]
fn keys_are_listed_by_state() {
    let (queue, clock) = queue();
    let items = states(&queue, &clock);
    let served = Served::new(Site::builder(queue.clone()));
    for (query, expected) in [
        ("", vec!["again", "failing", "ready", "running", "waiting"]),
        ("?state=ready", vec!["ready"]),
        ("?state=waiting", vec!["waiting"]),
        ("?state=backing_off", vec!["failing"]),
        ("?failed=true", vec!["failing"]),
        ("?state=parked", vec![]),
        ("?state=damaged", vec![]),
        ("?state=&q=&cursor=&limit=", vec!["again", "failing", "ready", "running", "waiting"]),
        ("?q=ING", vec!["failing", "running", "waiting"]),
        ("?q=ing&state=waiting", vec!["waiting"]),
        ("?q=g%20", vec![]),
    ] {
        let answer = get(served.address, &format!("/api/v1/keys{query}")).json();
        let mut found = names(&answer);
        found.sort_unstable();
        assert_eq!((found, &answer["next"]), (expected, &Value::Null), "{query}");
    }
    // The key that has run the longest comes first.
    let answer = get(served.address, "/api/v1/keys?state=running").json();
    assert_eq!(names(&answer), ["again", "running"]);
    let row = &answer["keys"][0];
    assert_eq!((&row["again"], &row["age"]), (&json!(true), &json!(60.0)));

    let row = get(served.address, "/api/v1/key?key=failing").json();
    let failing = json!({
        "key": "failing",
        "key_base64": "ZmFpbGluZw==",
        "state": "backing_off",
        "again": false,
        "age": 0.0,
        "due_in": 90.0,
        "lease_in": null,
        "attempt": 2,
        "failures": 1,
        "adds": 1,
        "priority": 0,
        "why": "backing off; ready in 90.0s; failed once",
        "error": null,
        "last_failure": null,
        "detail": {},
        "runs": [],
        "missing": null,
    });
    assert_eq!(row, failing);
    drop(items);
}

#[test]
fn a_paced_key_is_due_when_its_pace_permits_the_run() {
    let minute = Duration::from_secs(60);
    let queue = Queue::builder().clock(FakeClock::new()).pace(Pace::min_interval(minute));
    let queue: Keys = queue.build().expect("the settings are valid");
    queue.add(b"a".to_vec());
    queue.try_get().expect("it is ready").succeed();
    queue.add_after(b"a".to_vec(), Duration::from_secs(5));
    let served = Served::new(Site::builder(queue.clone()));
    let row = get(served.address, "/api/v1/key?key=a").json();
    assert_eq!((&row["state"], &row["due_in"]), (&json!("waiting"), &json!(60.0)));
    let why = json!("waiting for its pace; ready in 60.0s; it ran within the last 60s");
    assert_eq!(row["why"], why);
}

#[test]
fn a_walk_meets_each_key_once_a_page_at_a_time() {
    let (queue, _) = queue();
    let all: BTreeSet<String> = (0..3000).map(|n| format!("key/{n}")).collect();
    queue.add_all(all.iter().map(|key| key.as_bytes().to_vec()));
    let served = Served::new(Site::builder(queue.clone()));
    for limit in [7, 100, 256] {
        let first = get(served.address, &format!("/api/v1/keys?limit={limit}")).json();
        assert_eq!(names(&first).len(), limit);
    }
    let (found, _) = walk(&served, "limit=97");
    assert_eq!(found.len(), all.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), all);

    let (found, _) = walk(&served, "limit=3&q=9");
    let expected: BTreeSet<_> = all.into_iter().filter(|key| key.contains('9')).collect();
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);

    let items = queue.get_many(300).now();
    let (found, requests) = walk(&served, "state=running&limit=50");
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 300);
    assert!(requests >= 6, "{requests}");
    drop(items);
}

/// A cursor of a queue in memory is 32 bits of the hash of a key.
#[test]
fn a_cursor_is_a_secret_of_its_process_and_of_no_use_to_another() {
    let (queue, _) = queue();
    queue.add_all((0..1000_u32).map(|n| n.to_le_bytes().to_vec()));
    let items = queue.get_many(100).now();
    // The two sites differ only in their secrets, as before and after a restart.
    let [one, other] = [0; 2].map(|_| Served::new(Site::builder(queue.clone())));
    for state in ["", "ready", "running"] {
        let page = |served: &Served, cursor: &str| {
            let query = format!("state={state}&limit=10&cursor={cursor}");
            get(served.address, &format!("/api/v1/keys?{query}"))
        };
        let [first, second] = [&one, &other].map(|served| page(served, "").json());
        assert_eq!(names(&first), names(&second), "{state}");
        let [first, second] = [&first, &second].map(|page| page["next"].as_str().unwrap());
        assert_ne!(first, second, "{state}");
        assert_eq!(page(&one, first).status, 200, "{state}");
        assert_eq!(names(&page(&one, first).json()), names(&page(&other, second).json()));
        let refused = page(&one, second);
        assert_eq!((refused.status, &refused.json()["parameter"]), (400, &json!("cursor")));
    }
    drop(items);
}

#[test]
fn a_search_that_finds_nothing_looks_at_a_bounded_number_of_keys() {
    let (queue, _) = queue();
    queue.add_all((0..250_000_u32).map(|n| n.to_le_bytes().to_vec()));
    let served = Served::new(Site::builder(queue.clone()));
    let page = get(served.address, "/api/v1/keys?q=nowhere").json();
    assert_eq!(names(&page), [""; 0]);
    let looked_at = page["looked_at"].as_u64().unwrap();
    assert!((1..=100_256).contains(&looked_at), "{looked_at}");
    assert!(page["next"].is_string());
    assert_eq!(walk(&served, "q=nowhere"), (vec![], 3));
}

#[test]
fn keys_that_are_no_text_are_escaped_and_found() {
    let (queue, _) = queue();
    for key in [&b"\xff\n"[..], b"a b+c&d", b"\\xff", b""] {
        queue.add(key.to_vec());
    }
    let served = Served::new(Site::builder(queue.clone()));
    for (query, key, base64) in [
        ("key=%ff%0a", r"\xff\n", "/wo="),
        ("key_base64=/wo=", r"\xff\n", "/wo="),
        ("key_base64=_wo", r"\xff\n", "/wo="),
        ("key=a+b%2Bc%26d", "a b+c&d", "YSBiK2MmZA=="),
        ("key=%5Cxff", r"\\xff", "XHhmZg=="),
        ("key=", "", ""),
    ] {
        let row = get(served.address, &format!("/api/v1/key?{query}")).json();
        assert_eq!((&row["key"], &row["key_base64"]), (&json!(key), &json!(base64)), "{query}");
    }
    // A search matches the text that is shown.
    let found = get(served.address, "/api/v1/keys?q=%5CxFF%5Cn").json();
    assert_eq!(names(&found), [r"\xff\n"]);
}

#[test]
fn of_a_long_key_the_beginning_is_shown() {
    let (queue, _) = queue();
    queue.add(vec![b'x'; 100_000]);
    let served = Served::new(Site::builder(queue.clone()));
    let answer = get(served.address, "/api/v1/keys");
    assert!(answer.body.len() < 5000, "{}", answer.body.len());
    let row = &answer.json()["keys"][0];
    assert_eq!(row["key"], json!(format!("{}…", "x".repeat(4096))));
    assert_eq!(row["key_base64"], json!(null));
}

#[test]
fn the_program_adds_what_it_knows() {
    let (queue, _) = queue();
    queue.add_all([b"a".to_vec(), b"b".to_vec()]);
    let site = Site::builder(queue.clone()).detail(|key| match &key[..] {
        b"a" => Detail::new().attempt(3).field("slot", 2).field("last exit", "SIGKILL"),
        _ => Detail::new(),
    });
    let served = Served::new(site);
    let row = get(served.address, "/api/v1/key?key=a").json();
    assert_eq!(row["attempt"], json!(3));
    assert_eq!(row["detail"], json!({ "slot": "2", "last exit": "SIGKILL" }));
    let row = get(served.address, "/api/v1/key?key=b").json();
    assert_eq!((&row["attempt"], &row["detail"]), (&json!(1), &json!({})));
}

#[test]
fn a_key_that_is_not_there_is_not_found() {
    let served = Served::new(Site::builder(queue().0));
    let answer = get(served.address, "/api/v1/key?key=a");
    assert_eq!((answer.status, answer.json()), (404, json!({ "error": "not in the queue" })));
}

#[test]
fn keys_of_any_type_are_shown_as_the_program_says() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let queue: Queue<(u8, u64)> = Queue::new();
    queue.add((1, 22));
    let site = Site::builder_with(
        queue,
        |(tenant, id)| format!("{tenant}:{id}").into_bytes().into(),
        |bytes| {
            let (tenant, id) = std::str::from_utf8(bytes).ok()?.split_once(':')?;
            Some((tenant.parse().ok()?, id.parse().ok()?))
        },
    );
    let _inside = runtime.enter();
    let site = site.build();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move { site.serve(listener).await });
    assert_eq!(names(&get(address, "/api/v1/keys").json()), ["1:22"]);
    assert_eq!(get(address, "/api/v1/key?key=1:22").json()["state"], json!("ready"));
    let answer = get(address, "/api/v1/key?key=nonsense");
    assert_eq!((answer.status, &answer.json()["parameter"]), (400, &json!("key")));
}

/// A key that is ready or in flight and also has a due time, and a key that is known only for its failures, must not be
/// counted twice.
#[test]
fn the_states_add_up_whatever_the_queue_goes_through() {
    let clock = FakeClock::new();
    let queue =
        Queue::builder().clock(clock.clone()).readd_policy(ReaddPolicy::KeepBoth).track_times();
    let queue: Keys = queue.build().expect("the settings are valid");
    let history = History::new();
    let served = Served::new(Site::builder(queue.clone()).history(&history));
    let check = |keys: usize| {
        let now = get(served.address, "/api/v1/summary").json()["now"].clone();
        let number = |name: &str| now[name].as_u64().unwrap_or(0);
        let mut sum = 0;
        for state in ["ready", "waiting", "backing_off", "running", "parked"] {
            let listed = get(served.address, &format!("/api/v1/keys?state={state}")).json();
            assert_eq!(names(&listed).len() as u64, number(state), "{state}: {now}");
            assert_eq!(listed["more"], json!(false));
            sum += number(state);
        }
        let all = get(served.address, "/api/v1/keys").json();
        assert_eq!((number("keys"), names(&all).len() as u64), (sum, sum), "{now}");
        assert_eq!(sum, keys as u64, "{now}");
    };
    let key = |name: &str| name.as_bytes().to_vec();
    queue.add(key("ready"));
    queue.add_after(key("ready"), Duration::from_secs(60));
    queue.add_after(key("waiting"), Duration::from_secs(60));
    check(2);
    let item = queue.try_get().map(Item::into_owned).expect("a key is ready");
    queue.add(key("ready"));
    check(2);
    item.complete(Completion::RetryAfter(Duration::from_secs(30)));
    check(2);
    // The backoff is over, so the key is ready, and it has failed.
    clock.advance(Duration::from_secs(31));
    check(2);
    let failed = get(served.address, "/api/v1/keys?failed=true").json();
    assert_eq!((names(&failed), &failed["keys"][0]["state"]), (vec!["ready"], &json!("ready")));
    queue.try_get().map(Item::into_owned).expect("a key is ready").done();
    // Only the failures of the key are known.
    assert!(queue.look_up(&key("ready")).is_some());
    check(1);
    queue.add(key("parked"));
    queue.try_get().map(Item::into_owned).expect("a key is ready").complete(Completion::GiveUp);
    history.gave_up("parked", Run::new(1).error("no such address"));
    check(2);
    queue.add(key("parked"));
    check(2);
}

#[test]
fn a_parked_key_is_listed_with_its_error_until_it_is_added_again() {
    let (queue, _) = queue();
    let history = History::new();
    let served = Served::new(Site::builder(queue.clone()).history(&history));
    let key = |name: &str| name.as_bytes().to_vec();
    for n in 0..30 {
        queue.add(format!("key/{n:02}").into_bytes());
        let item = queue.try_get().map(Item::into_owned).expect("a key is ready");
        let name = item.key().clone();
        history.failed(&name, Run::new(1).error("first").took(Duration::from_millis(1500)));
        item.complete(Completion::GiveUp);
        history.gave_up(&name, Run::new(2).error("exit status: 7").output("tail\n"));
    }
    queue.add_all([key("other"), key("key/00")]);
    // Parked keys come after those of the queue, the newest first, on as many pages as needed.
    for limit in [1, 7, 256] {
        let (found, _) = walk(&served, &format!("limit={limit}"));
        let parked: Vec<_> = (1..30).rev().map(|n| format!("key/{n:02}")).collect();
        assert_eq!((found.len(), &found[2..]), (31, &parked[..]), "{limit}");
        let (found, _) = walk(&served, &format!("limit={limit}&state=parked&q=KEY/1"));
        assert_eq!(found.len(), 10, "{limit}");
    }
    let page = get(served.address, "/api/v1/key?key=key/07").json();
    assert_eq!((&page["state"], &page["attempt"]), (&json!("parked"), &json!(2)));
    assert_eq!(page["error"], json!("exit status: 7"));
    assert!(page["last_failure"].as_f64().is_some_and(|since| since >= 0.0), "{page}");
    let runs = page["runs"].as_array().expect("a list");
    assert_eq!((&runs[0]["output"], &runs[1]["output"]), (&json!("tail\n"), &Value::Null));
    let outcomes: Vec<_> = runs.iter().map(|run| (&run["outcome"], &run["took"])).collect();
    let expected = [(&json!("given_up"), &Value::Null), (&json!("failed"), &json!(1.5))];
    assert_eq!(outcomes, expected);
    // The key is in the queue again, and its past is known.
    let page = get(served.address, "/api/v1/key?key=key/00").json();
    assert_eq!((&page["state"], page["runs"].as_array().map(Vec::len)), (&json!("ready"), Some(2)));
}

#[test]
fn keys_are_sorted_by_each_column() {
    let (queue, clock) = queue();
    let items = states(&queue, &clock);
    let history = History::new();
    history.gave_up("parked", Run::new(9));
    let served = Served::new(Site::builder(queue.clone()).history(&history));
    let sorted = |query: &str| {
        let answer = get(served.address, &format!("/api/v1/keys?{query}")).json();
        assert_eq!(answer["next"], Value::Null);
        names(&answer).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let by_key = ["again", "failing", "parked", "ready", "running", "waiting"];
    assert_eq!(sorted("sort=key"), by_key);
    assert_eq!(sorted("sort=key&order=desc"), by_key.iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(sorted("sort=attempt&order=desc&limit=2"), ["parked", "failing"]);
    assert_eq!(sorted("sort=due_in&limit=2"), ["failing", "waiting"]);
    assert_eq!(sorted("sort=due_in&order=desc&limit=2"), ["waiting", "failing"]);
    assert_eq!(sorted("sort=age&order=desc&state=running"), ["again", "running"]);
    let by_state = sorted("sort=state");
    assert_eq!(by_state[2..], ["failing", "parked", "waiting", "ready"]);
    let answer = get(served.address, "/api/v1/keys?sort=key&limit=2").json();
    assert_eq!(answer["more"], json!(true));
    drop(items);
}
