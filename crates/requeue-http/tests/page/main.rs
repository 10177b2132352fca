//! Tests of the dashboard in a browser.

mod actions;
mod chromium;
mod overview;
#[cfg(feature = "store")]
mod queues;
#[cfg(feature = "store")]
mod store;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use chromium::Chromium;
use requeue::clock::FakeClock;
use requeue::{Completion, Queue, ReaddPolicy};
use requeue_http::{AccessToken, Detail, History, Run, Section, Site};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

type Keys = Queue<Vec<u8>>;

const TOKEN: &str = "0123456789abcdef";

/// A queue with its dashboard, on a separate port.
struct Served {
    queue: Keys,
    clock: FakeClock,
    history: History,
    site: Site,
    address: SocketAddr,
    /// True if the program has a table.
    has_table: Arc<AtomicBool>,
    /// The number of calls of the detail function.
    shown: Arc<AtomicUsize>,
    /// The runtime of the server.
    runtime: Runtime,
}

impl Served {
    fn start() -> Self {
        Self::at("127.0.0.1:0".parse().expect("an address"))
    }

    fn at(address: SocketAddr) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let _inside = runtime.enter();
        let clock = FakeClock::new();
        let queue =
            Queue::builder().clock(clock.clone()).readd_policy(ReaddPolicy::Hold).track_times();
        let queue = queue.record_events(64 << 10);
        let queue: Keys = queue.build().expect("the settings are valid");
        let history = History::new();
        let shown = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&shown);
        let has_table = Arc::new(AtomicBool::new(false));
        let shows = Arc::clone(&has_table);
        let site = Site::builder(queue.clone())
            .title("hash <files>")
            .history(&history)
            .jobs(8, || 3)
            .target(Duration::from_secs(30))
            .section(move || {
                let shards = Section::new("Shards", ["shard", "holder"]);
                let row = |it: Section, shard| it.row([format!("{shard}"), "<b>".to_owned()]);
                shows.load(Ordering::Relaxed).then(|| (0..40).fold(shards, row))
            })
            .hint("echo KEY >>keys")
            .admin(AccessToken::new(TOKEN).expect("it is long enough"))
            .detail(move |key| {
                counter.fetch_add(1, Ordering::Relaxed);
                match key.starts_with(b"src/") {
                    true => Detail::new().attempt(7).field("last exit", 2),
                    false => Detail::new(),
                }
            })
            .build();
        let listener = runtime.block_on(TcpListener::bind(address)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let app = Router::new().nest_service("/queue", site.router()).merge(site.router());
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { queue, clock, history, site, address, has_table, shown, runtime }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// Returns a browser for this test at this page, or `None` if no browser is installed.
#[track_caller]
fn browser(test: &str, url: &str) -> Option<Chromium> {
    let page = Chromium::start(&chromium::find(test)?, test);
    page.look(1280, 900, "light");
    page.open(url);
    page.wait_for("document.body.dataset.link === 'live'");
    Some(page)
}

/// Checks that the page had no errors, and sent no request to other hosts.
#[track_caller]
fn is_clean(page: &Chromium, served: &Served) {
    assert_eq!(page.complaints(), [""; 0]);
    let own = served.url("/");
    let strange = page.requests().into_iter().filter(|url| !url.starts_with(&own));
    assert_eq!(strange.collect::<Vec<_>>(), [""; 0]);
    assert!(page.requests().len() > 5, "requests are seen");
}

/// Unlocks the actions.
#[track_caller]
fn unlock(page: &Chromium, token: &str) {
    page.eval("document.querySelector('#unlock').focus()");
    page.press("Enter");
    page.wait_for("document.activeElement.matches('#token input')");
    page.type_text(token);
    page.press("Tab");
    page.type_text("ann");
    page.press("Enter");
}

fn count(name: &str) -> String {
    format!("document.querySelector('[data-count={name}]').textContent")
}

/// The keys that the table shows.
const SHOWN: &str =
    "[...document.querySelectorAll('#keys tbody tr')].map((row) => row.cells[0].textContent)";

#[test]
fn counts_move_as_the_queue_does() {
    let served = Served::start();
    let Some(page) = browser("counts_move_as_the_queue_does", &served.url("/")) else { return };
    page.wait_for(&format!("{} === '0'", count("ready")));
    let keys = (0..1234).map(|n| format!("docs/{n}").into_bytes());
    served.queue.add_all(keys);
    served.queue.add_after(b"later".to_vec(), Duration::from_secs(60));
    page.wait_for(&format!("{} === '1,234'", count("ready")));
    let item = served.queue.try_get().expect("a key is ready");
    served.queue.try_get().expect("a key is ready").retry();
    for (name, number) in [
        ("running", "1"),
        ("backing_off", "1"),
        ("waiting", "1"),
        ("ready", "1,232"),
        ("keys", "1,235"),
    ] {
        page.wait_for(&format!("{} === '{number}'", count(name)));
    }
    page.wait_for("document.querySelector('#facts').textContent.includes('3 of 8 jobs busy')");
    item.succeed();
    page.wait_for(&format!("{} === '0'", count("running")));
    page.wait_for("document.querySelectorAll('#rates path[d]:not([d=\"\"])').length === 4");
    assert_eq!(page.eval("document.querySelector('h1').textContent"), json!("hash <files>"));
    is_clean(&page, &served);
}

#[test]
fn a_stuck_key_is_found_by_search_among_many() {
    let served = Served::start();
    served.queue.add(b"src/Stuck <b>.rs".to_vec());
    let stuck = served.queue.try_get().expect("a key is ready");
    served.clock.advance(Duration::from_secs(3600));
    served.queue.add(b"docs/other".to_vec());
    let other = served.queue.try_get().expect("a key is ready");
    served.queue.add_all((0..250_000).map(|n| format!("docs/{n}").into_bytes()));
    served.queue.add_after(b"waits/1".to_vec(), Duration::from_secs(90));

    let test = "a_stuck_key_is_found_by_search_among_many";
    let Some(page) = browser(test, &served.url("/")) else { return };
    // The key that has run the longest is on top.
    page.wait_for(&format!("{SHOWN}.length === 100"));
    page.wait_for(&format!("{SHOWN}.slice(0, 2).join() === 'src/Stuck <b>.rs,docs/other'"));
    page.eval("document.querySelector('#search').focus()");
    page.type_text("stuck <b>");
    page.wait_for(&format!("{SHOWN}.join() === 'src/Stuck <b>.rs'"));
    let row =
        page.eval("[...document.querySelector('#keys tbody tr').cells].map((c) => c.innerText)");
    let why = "in flight · last\u{a0}exit\u{a0}2";
    assert_eq!(row, json!(["src/Stuck <b>.rs", "running", "1 h 00 min", "7", "", why]));
    // An earlier part of the text already selects the key.
    page.wait_for("document.querySelector('mark')?.textContent === 'Stuck <b>'");

    // A waiting key, which is found after all keys that do not match.
    page.eval("document.querySelector('#search').select()");
    page.type_text("waits/");
    page.wait_for(&format!("{SHOWN}.join() === 'waits/1'"));
    page.eval("document.querySelector('#search').select()");
    page.type_text("nowhere");
    page.wait_for("!document.querySelector('#none').hidden");
    let none = page.eval("document.querySelector('#none').textContent");
    assert_eq!(none, json!("No keys with “nowhere”."));
    is_clean(&page, &served);
    drop((stuck, other));
}

#[test]
fn it_works_by_keyboard() {
    let served = Served::start();
    served.queue.add_all((0..3).map(|n| format!("ready/{n}").into_bytes()));
    served.queue.add_after(b"waits".to_vec(), Duration::from_secs(60));
    let Some(page) = browser("it_works_by_keyboard", &served.url("/")) else { return };
    page.wait_for(&format!("{SHOWN}.length === 4"));

    page.press("Tab");
    let focused = |what: &str| format!("document.activeElement.matches('{what}')");
    page.wait_for(&focused("a.skip"));
    let top = "document.querySelector('a.skip').getBoundingClientRect().top";
    page.wait_for(&format!("{top} >= 0"));
    page.press("Enter");
    page.wait_for(&focused("#keys"));
    page.press("Tab");
    page.wait_for(&focused("#search"));

    // The states are a group of radio buttons, and a choice takes effect immediately.
    page.eval("document.querySelector('[name=state]:checked').focus()");
    page.press("ArrowLeft");
    page.wait_for(&focused("[value=parked]"));
    page.press("ArrowLeft");
    page.wait_for(&focused("[value=ready]"));
    page.wait_for(&format!("{SHOWN}.length === 3"));
    page.press("ArrowLeft");
    page.wait_for(&format!("{SHOWN}.join() === 'waits'"));
    let outline = "getComputedStyle(document.activeElement.closest('label')).outlineStyle";
    assert_eq!(page.eval(outline), json!("solid"));

    page.press("/");
    page.wait_for(&focused("#search"));
    assert_eq!(page.eval("document.querySelector('#search').value"), json!(""));
    page.type_text("x/y");
    page.wait_for("!document.querySelector('#none').hidden");
    assert_eq!(page.eval("document.querySelector('#search').value"), json!("x/y"));
    is_clean(&page, &served);
}

#[test]
fn a_screen_reader_finds_a_table_labels_and_a_quiet_status() {
    let served = Served::start();
    served.queue.add_all([b"a".to_vec(), b"b\n\xff".to_vec()]);
    let test = "a_screen_reader_finds_a_table_labels_and_a_quiet_status";
    let Some(page) = browser(test, &served.url("/")) else { return };
    // The test also uses a narrow window, where rows are paragraphs.
    for width in [1280, 360] {
        page.look(width, 900, "light");
        page.wait_for(&format!("{SHOWN}.length === 2"));
        let tree = page.call("Accessibility.getFullAXTree", json!({}));
        let nodes: Vec<(String, String)> = tree["nodes"]
            .as_array()
            .expect("nodes")
            .iter()
            .filter(|node| node["ignored"] == json!(false))
            .map(|node| {
                let text = |field: &str| node[field]["value"].as_str().unwrap_or_default();
                (text("role").to_owned(), text("name").to_owned())
            })
            .collect();
        let named = |role: &str| -> Vec<&str> {
            nodes.iter().filter(|node| node.0 == role).map(|node| &*node.1).collect()
        };
        assert_eq!(named("table"), ["Keys", "Longest runs", "Pending keys by cause"], "{width}");
        let columns = ["Key", "State", "Age", "Attempt", "Due in", "Why"];
        let headers = named("columnheader");
        assert!(headers.windows(columns.len()).any(|names| names == columns), "{headers:?}");
        assert_eq!(named("row").len(), 6, "{width}");
        let mut rows = named("rowheader");
        rows.sort_unstable();
        assert_eq!(rows, ["a", r"b\n\xff", "worker"], "{width}");
        assert_eq!(named("searchbox"), ["Search"], "{width}");
        let states = ["0 running", "0 backing off", "0 waiting", "2 ready", "0 parked", "2 all"];
        assert_eq!(named("radio")[..states.len()], states, "{width}");
        let ranges = ["15 min", "1 h", "24 h", "7 days"];
        assert_eq!(named("radio")[states.len()..], ranges, "{width}");
        assert_eq!(named("heading").len(), 8, "{width}");
        let has = |text: &str| named("image").iter().any(|name| name.contains(text));
        assert!(has("Events per second in the last ") && has("no runs in this time"), "{nodes:?}");
    }
    // The live regions announce only the connection, the result of a search, and the results of actions.
    let loud = "[...document.querySelectorAll('[role=status], [role=alert], [aria-live]')]
        .map((element) => element.id).join()";
    assert_eq!(page.eval(loud), json!("done,link,found,,,,"));
    is_clean(&page, &served);
}

#[test]
fn keys_are_text_whatever_they_hold() {
    let served = Served::start();
    let keys =
        ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "a\n\u{202e}b"];
    served.queue.add_all(keys.map(|key| key.as_bytes().to_vec()));
    let Some(page) = browser("keys_are_text_whatever_they_hold", &served.url("/")) else { return };
    page.wait_for(&format!("{SHOWN}.length === 3"));
    let shown = page.eval(&format!("{SHOWN}.sort()"));
    assert_eq!(shown, json!([keys[1], keys[0], r"a\n\u{202e}b"]));
    assert_eq!(page.eval("document.querySelectorAll('tbody img, tbody script').length"), json!(0));
    is_clean(&page, &served);
}

#[test]
fn it_says_when_the_program_ends_and_comes_back_with_it() {
    let served = Served::start();
    let test = "it_says_when_the_program_ends_and_comes_back_with_it";
    let Some(page) = browser(test, &served.url("/")) else { return };
    served.queue.add_all((0..5).map(|n| vec![b'a' + n]));
    page.wait_for(&format!("{} === '5'", count("ready")));
    page.wait_for(&format!("{SHOWN}.length === 5"));
    let said = "document.querySelector('#link').textContent";
    assert_eq!(page.eval(said), json!("Live"));
    is_clean(&page, &served);

    let address = served.address;
    served.site.shutdown();
    page.wait_for(&format!("{said}.startsWith('Ended at ')"));
    // The last values are still shown.
    assert_eq!(page.eval(&count("ready")), json!("5"));
    assert_eq!(page.eval(&format!("{SHOWN}.length")), json!(5));
    drop(served);
    let served = Served::at(address);
    served.queue.add(b"afresh".to_vec());
    page.wait_for(&format!("{said}.startsWith('Live; restarted at ')"));
    page.wait_for(&format!("{SHOWN}.join() === 'afresh'"));
    page.wait_for(&format!("{} === '1'", count("ready")));

    // The server disappears without `ended`.
    drop(served);
    page.wait_for(&format!("{said} === 'Connection lost; retrying'"));
}

/// A page of another site cannot read a response, but could measure its duration.
#[test]
fn a_page_of_another_site_has_no_key_looked_for() {
    let served = Served::start();
    served.queue.add(b"src/secret".to_vec());
    let listener = served.runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    // For a browser, `localhost` and the address are different sites.
    let port = listener.local_addr().expect("an address").port();
    let html = || async { axum::response::Html("<!doctype html><title>evil</title><body>") };
    let app = Router::new().route("/", axum::routing::get(html));
    served.runtime.spawn(async move { axum::serve(listener, app).await });
    let Some(chromium) = chromium::find("a_page_of_another_site_has_no_key_looked_for") else {
        return;
    };
    let page = Chromium::start(&chromium, "a_page_of_another_site_has_no_key_looked_for");
    let search = served.url("/api/v1/keys?q=src/s");

    page.open(&format!("http://localhost:{port}/"));
    let attacks = [
        format!("fetch('{search}', {{ mode: 'no-cors', credentials: 'include' }})"),
        format!("fetch('{search}')"),
        format!("Object.assign(new Image(), {{ src: '{search}' }}).decode()"),
    ];
    for attack in attacks {
        page.eval(&format!("{attack}.then(() => 0, () => 0)"));
    }
    for element in ["iframe", "script", "object", "link"] {
        page.eval(&format!(
            "new Promise((done) => {{
                const element = document.createElement('{element}');
                element.rel = 'stylesheet';
                element.onload = element.onerror = done;
                element.src = element.href = element.data = '{search}';
                document.body.append(element);
            }}).then(() => 0)"
        ));
    }
    page.eval(&format!("Boolean(window.open('{search}'))"));
    assert_eq!(served.shown.load(Ordering::Relaxed), 0);

    // The dashboard itself finds the key.
    page.open(&served.url("/"));
    page.wait_for(&format!("document.body.dataset.link === 'live' && {SHOWN}.length === 1"));
    assert!(served.shown.load(Ordering::Relaxed) > 0);
}

/// The lowest contrast between a visible text and its background.
const CONTRAST: &str = "(() => {
    const light = (color) => {
        const [r, g, b] = color.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paper = light(getComputedStyle(document.documentElement).backgroundColor);
    const words = [...document.querySelectorAll('body *')].filter((element) =>
        [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
        && element.checkVisibility() && !element.matches('.skip, noscript, script, style'));
    return Math.min(...words.map((element) => {
        const style = getComputedStyle(element);
        const ink = light(element.closest('svg') ? style.fill : style.color);
        return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    }));
})()";

#[test]
fn it_can_be_read_light_and_dark_wide_and_narrow() {
    let served = Served::start();
    let names = ["Cargo.toml", "src/lib.rs", "src/queue/ending.rs", "docs/concepts/semantics.md"];
    served.queue.add_all(names.map(|name| name.as_bytes().to_vec()));
    served.queue.add(b"a/key/that/is/long/and/has/no/place/to/break/".repeat(4));
    let running = served.queue.try_get();
    served.queue.try_get().expect("a key is ready").retry();
    served.queue.add_after(b"later".to_vec(), Duration::from_secs(600));
    // The dashboard is under another path, without a slash at its end.
    let test = "it_can_be_read_light_and_dark_wide_and_narrow";
    let Some(page) = browser(test, &served.url("/queue")) else { return };
    page.wait_for(&format!("{SHOWN}.length === 6"));
    page.wait_for("document.querySelectorAll('.plot path').length === 12");
    let mut papers = Vec::new();
    for scheme in ["light", "dark"] {
        for (size, width, height) in
            [("wide", 1280, 900), ("narrow", 360, 1400), ("least", 320, 1400)]
        {
            page.look(width, height, scheme);
            let overflows = "document.documentElement.scrollWidth > innerWidth";
            assert_eq!(page.eval(overflows), json!(false), "{size} {scheme}");
            let contrast = page.eval(CONTRAST).as_f64().expect("a number");
            assert!(contrast >= 4.5, "{size} {scheme}: {contrast}");
            page.screenshot(&format!("page-{size}-{scheme}"));
        }
        papers.push(page.eval("getComputedStyle(document.documentElement).backgroundColor"));
    }
    assert_ne!(papers[0], papers[1]);
    is_clean(&page, &served);
    drop(running);
}

/// The text of an element.
fn text(selector: &str) -> String {
    format!("document.querySelector('{selector}').textContent")
}

#[test]
fn the_page_of_a_key_has_its_attempts_its_error_and_its_past() {
    let served = Served::start();
    for key in [&b"src/mail"[..], b"b\n\xff"] {
        served.queue.add(key.to_vec());
        served.queue.try_get().expect("a key is ready").complete(Completion::GiveUp);
        let run = Run::new(1).error("exit status: 2").took(Duration::from_millis(2500));
        served.history.failed(key, run);
        served.history.gave_up(key, Run::new(2).error("exit <7>").output("line 1\r\nline\x1b 2\n"));
    }
    let test = "the_page_of_a_key_has_its_attempts_its_error_and_its_past";
    let Some(page) = browser(test, &served.url("/queue/?q=src")) else { return };
    page.wait_for(&format!("{SHOWN}.join() === 'src/mail'"));
    let why = page.eval("document.querySelector('#keys tbody .why').textContent");
    assert!(why.as_str().is_some_and(|why| why.contains("exit <7>")), "{why}");
    page.eval("document.querySelector('#keys tbody a').focus()");
    page.press("Enter");
    page.wait_for(&format!("{} === 'src/mail'", text("#key-name")));
    page.wait_for("location.search === '?q=src&key=src%2Fmail'");
    page.wait_for("document.activeElement.id === 'key'");
    page.wait_for(&format!("{} === 'exit <7>'", text("#key-error")));
    assert_eq!(page.eval(&text("#key-runs pre")), json!("line 1\nline\\x1b 2\n"));
    assert_eq!(page.eval("document.querySelector('#key-runs details').open"), json!(true));
    let facts = page.eval("document.querySelector('#key-facts').innerText");
    let facts = facts.as_str().expect("text");
    assert!(facts.contains("State\nparked") && facts.contains("Attempt\n2"), "{facts}");
    let runs = page.eval(
        "[...document.querySelectorAll('#key-runs tbody tr:not(:has(pre))')]
            .map((row) => [...row.cells].slice(1).map((cell) => cell.textContent).join())",
    );
    assert_eq!(runs, json!(["given up,2,,,,exit <7>", "failed,1,2.5 s,,,exit status: 2"]));

    // The page follows the key.
    served.queue.add_after(b"src/mail".to_vec(), Duration::from_secs(90));
    let has = |part: &str| format!("{}.includes('{part}')", text("#key-why"));
    page.wait_for(&has("waiting; ready in 90.0s"));
    page.wait_for(&format!("{}.includes('1 min 30 s')", text("#key-facts")));

    page.eval("document.querySelector('#back').click()");
    page.wait_for("!document.querySelector('#overview').hidden && location.search === '?q=src'");
    page.eval("history.back()");
    page.wait_for("!document.querySelector('#key').hidden");
    // The page is opened by its address, for a key that is not text.
    page.open(&served.url("/queue/?key_base64=Ygr%2F"));
    page.wait_for(&format!("{} === 'b\\\\n\\\\xff'", text("#key-name")));
    page.open(&served.url("/queue/?key=none"));
    page.wait_for(&has("Not in the queue"));
    // A request for a key that the queue does not have is an error in the console.
    let complaints = page.complaints();
    assert!(complaints.iter().all(|text| text.contains("404")), "{complaints:?}");
}

#[test]
fn the_timeline_of_a_key_names_the_causes_of_its_waits() {
    let served = Served::start();
    let seconds = Duration::from_secs;
    served.queue.add(b"a".to_vec());
    served.clock.advance(seconds(60));
    let item = served.queue.try_get().expect("the key is ready");
    served.clock.advance(seconds(20));
    item.complete(Completion::RetryAfter(seconds(120)));
    served.history.failed("a", Run::new(1).error("exit status: 3"));
    let test = "the_timeline_of_a_key_names_the_causes_of_its_waits";
    let Some(page) = browser(test, &served.url("/?key=a")) else { return };
    let all = |what: &str| format!("[...document.querySelectorAll('#key-line {what}')]");
    let texts = |what: &str| format!("{}.map((it) => it.textContent).join()", all(what));
    page.wait_for(&format!("{} === 'ready,failed,backoff'", texts("button")));
    page.wait_for(&format!("{} === 'added'", texts(".mark")));
    assert_eq!(page.eval(&texts(".now")), json!("now"));
    let colours = format!(
        "new Set({}.map((it) => getComputedStyle(it).backgroundColor)).size",
        all("button")
    );
    assert_eq!(page.eval(&colours), json!(3));
    // The page follows the key.
    served.clock.advance(seconds(50));
    let shown = text("#key-shown");
    let ends = |end: &str| format!("{shown}.endsWith(' {end}')");
    page.wait_for(&ends("backing off after 1 failure, 1 min 10 s more"));
    let cells = "[...document.querySelectorAll('#key-past tbody tr')]
        .map((row) => [...row.cells].slice(1).map((cell) => cell.textContent).join(': '))";
    let expected = [
        "backing off after 1 failure: 1 min 10 s more",
        "attempt 1 failed and is retried: exit status: 3: 20.0 s",
        "ready, waiting for a worker: 1 min 00 s",
        "added: ",
    ];
    assert_eq!(page.eval(cells), json!(expected));
    let known = "All events of this key are known.";
    assert_eq!(page.eval(&text("#key-known")), json!(known));

    // The line is one stop of the Tab key. The arrow keys move within the line, which does not move meanwhile.
    assert_eq!(page.eval(&format!("{}.length", all("button[tabindex=\"0\"]"))), json!(1));
    page.eval("document.querySelector('#key-line button[tabindex=\"0\"]').focus()");
    page.press("ArrowLeft");
    page.wait_for(&ends("attempt 1 failed and is retried: exit status: 3, 20.0 s"));
    page.press("Home");
    page.wait_for(&ends("ready, waiting for a worker, 1 min 00 s"));
    let label = format!("document.activeElement.ariaLabel === 'ready: ' + {shown}");
    assert_eq!(page.eval(&label), json!(true));
    is_clean(&page, &served);

    // Only segments that are wide enough have words.
    page.eval("document.activeElement.blur()");
    page.look(320, 900, "dark");
    page.wait_for(&format!("!{}.includes('failed')", texts("button")));

    // The state of the key is shown even without its past.
    page.eval(
        "(({ fetch }) => {
            const none = () => Promise.resolve(new Response('', { status: 503 }));
            window.fetch = (url, init) => String(url).includes('timeline') ? none() : fetch(url, init);
        })(window)",
    );
    let _ = served.queue.cancel(&b"a"[..]);
    page.wait_for(&format!("{}.includes('was cancelled')", text("#key-why")));
    page.wait_for("document.querySelector('#key-time').hidden");
}

#[test]
fn columns_are_sorted_and_the_view_is_in_the_address() {
    let served = Served::start();
    for (n, name) in ["b", "c", "a"].into_iter().enumerate() {
        served.queue.add_after(name.as_bytes().to_vec(), Duration::from_secs(60 * (n as u64 + 1)));
    }
    let test = "columns_are_sorted_and_the_view_is_in_the_address";
    let Some(page) = browser(test, &served.url("/?sort=key&order=desc")) else { return };
    let shows = |keys: &str| page.wait_for(&format!("{SHOWN}.join() === '{keys}'"));
    let sorted = |column: &str| {
        page.eval(&format!(
            "document.querySelector('[data-sort={column}]').closest('th').getAttribute('aria-sort')"
        ))
    };
    shows("c,b,a");
    assert_eq!(sorted("key"), json!("descending"));
    page.eval("document.querySelector('[data-sort=due_in]').focus()");
    page.press("Enter");
    shows("b,c,a");
    assert_eq!((sorted("key"), sorted("due_in")), (json!(null), json!("ascending")));
    page.wait_for("location.search === '?sort=due_in&order=asc'");
    page.press("Enter");
    shows("a,c,b");
    page.press("/");
    page.type_text("C");
    shows("c");
    page.wait_for("location.search === '?q=C&sort=due_in&order=desc'");
    page.open(&served.url("/?q=C&sort=due_in&order=desc"));
    shows("c");
    assert_eq!(page.eval("document.querySelector('#search').value"), json!("C"));

    page.open(&served.url("/?failed=true&state=waiting"));
    page.wait_for("!document.querySelector('#none').hidden");
    assert_eq!(page.eval(&text("#none")), json!("No failed waiting keys."));
    page.eval("document.querySelector('#failed').click()");
    page.wait_for(&format!("{SHOWN}.length === 3 && location.search === '?state=waiting'"));
    is_clean(&page, &served);
}

#[test]
fn an_empty_page_says_how_to_add_a_key() {
    let served = Served::start();
    let Some(page) = browser("an_empty_page_says_how_to_add_a_key", &served.url("/")) else {
        return;
    };
    page.wait_for("!document.querySelector('#hint').hidden");
    assert_eq!(page.eval(&text("#hint code")), json!("echo KEY >>keys"));
    assert_eq!(page.eval("document.querySelector('#none').hidden"), json!(true));
    served.queue.add(b"a".to_vec());
    page.wait_for("document.querySelector('#hint').hidden");
    is_clean(&page, &served);
}

/// The largest value is at the top, and a tenth of it is not at the bottom.
#[test]
fn a_burst_does_not_flatten_the_plot_of_events() {
    let served = Served::start();
    let Some(page) = browser("a_burst_does_not_flatten", &served.url("/")) else { return };
    let heights = page.eval(&format!(
        "import('{}').then(({{ fromZero }}) => {{
            const range = fromZero.range([10000, 10]);
            return [10000, 10, 0].map((value) => fromZero.at(value, range));
        }})",
        served.url("/plot.js")
    ));
    let heights: Vec<f64> = serde_json::from_value(heights).expect("numbers");
    assert!(heights[0] == 1.0 && heights[1] > 0.2 && heights[2] == 0.0, "{heights:?}");
}

/// Returns the violations that axe-core finds on a page. Without axe-core, returns `None`.
fn violations(page: &Chromium) -> serde_json::Value {
    page.eval(
        "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) =>
            violations.map(({ id, nodes }) => [id, nodes.map((node) => node.html.slice(0, 200))]))",
    )
}

#[test]
fn tables_of_the_program_are_below_the_keys() {
    let served = Served::start();
    served.has_table.store(true, Ordering::Relaxed);
    let test = "tables_of_the_program_are_below_the_keys";
    let Some(page) = browser(test, &served.url("/")) else { return };
    page.wait_for("document.querySelectorAll('#sections tbody tr').length === 40");
    let cells = page
        .eval("[...document.querySelectorAll('#sections tr')[40].cells].map((c) => c.textContent)");
    assert_eq!(cells, json!(["39", "<b>"]));
    let name = "document.getElementById(document.querySelector('#sections [role=region]')
        .getAttribute('aria-labelledby')).textContent";
    assert_eq!(page.eval(name), json!("Shards"));
    // The table is not replaced while it does not change.
    page.eval("document.querySelector('#sections .rows').focus()");
    let requests = |page: &Chromium| {
        page.requests().into_iter().filter(|url| url.ends_with("api/v1/sections")).count()
    };
    let before = requests(&page);
    while requests(&page) < before + 2 {
        page.wait_for("true");
    }
    page.wait_for("document.activeElement.matches('#sections .rows')");
    is_clean(&page, &served);
}

#[test]
fn axe_reports_nothing() {
    let Some(axe) = chromium::axe("axe_reports_nothing") else { return };
    let served = Served::start();
    served.queue.add_all((0..150).map(|n| format!("docs/{n}").into_bytes()));
    served.queue.add_after(b"later".to_vec(), Duration::from_secs(60));
    served.queue.try_get().expect("a key is ready").retry();
    let running = served.queue.try_get();
    served.history.gave_up("parked", Run::new(3).error("exit status: 1").output("line\n"));
    let Some(page) = browser("axe_reports_nothing", &served.url("/")) else { return };
    page.wait_for(&format!("{SHOWN}.length === 100"));
    served.has_table.store(true, Ordering::Relaxed);
    for path in ["/", "/?sort=age&order=desc", "/?state=parked&q=x", "/?key=parked", "/?key=later"]
    {
        page.open(&served.url(path));
        page.wait_for("document.body.dataset.link === 'live'");
        page.wait_for("document.querySelector('#facts').textContent !== ''");
        if !path.contains("?key=") {
            page.wait_for("document.querySelector('#sections table') !== null");
        }
        page.eval(&axe);
        unlock(&page, TOKEN);
        page.wait_for("document.body.dataset.admin === 'open'");
        for scheme in ["light", "dark"] {
            for width in [1280, 320] {
                page.look(width, 900, scheme);
                assert_eq!(violations(&page), json!([]), "{path} {scheme} {width}");
                let overflows = page.eval("document.documentElement.scrollWidth > innerWidth");
                assert_eq!(overflows, json!(false), "{path} {width}");
            }
        }
    }
    for dialog in ["#token", "#new", "#group-limit", "#times", "#confirm"] {
        page.eval(&format!("document.querySelector('{dialog}').showModal()"));
        page.eval("document.querySelector('#question').textContent = 'Cancel: 1 key?'");
        assert_eq!(violations(&page), json!([]), "{dialog}");
        page.eval(&format!("document.querySelector('{dialog}').close()"));
    }
    drop(running);
}
