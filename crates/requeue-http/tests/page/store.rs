//! The dashboard of a queue in a store.

use std::path::Path;
use std::time::Duration;

use requeue_http::{AccessToken, Site};
use requeue_servers::Redis;
use requeue_store::{ActionRecord, Queue, Rate, Schedule, Store};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::{TOKEN, browser, count, text, unlock};

#[test]
fn numbers_that_are_old_are_shown_with_their_age() {
    let Some(server) = Redis::start() else { return };
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let queue = runtime.block_on(async {
        let store = Store::connect(&server.url("")).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        store.queue("mail").open().await.expect("the queue opens")
    });
    runtime.block_on(queue.add("a")).expect("added");
    let url = serve(&runtime, Site::of_store(queue).build());
    let test = "numbers_that_are_old_are_shown_with_their_age";
    let Some(page) = browser(test, &url) else { return };
    page.wait_for(&format!("{} === '1'", count("ready")));
    let facts =
        |text: &str| format!("document.querySelector('#facts').textContent.includes('{text}')");
    let state = "document.body.dataset.health + ' ' + document.querySelector('#state').innerText";
    page.wait_for(&facts("0 runs in the last hour"));
    page.wait_for(&facts("0 workers alive · oldest ready "));
    page.wait_for(&format!("{state} === 'ok Live'"));

    server.freeze();
    // An unknown number is a dash with the reason, and the page is not live.
    let state_is = |text: &str| format!("/^{text}$/.test({state}.trim())");
    page.wait_for(&state_is("bad Store unreachable keys counted .* ago"));
    page.wait_for(&facts("– the store has not answered runs in the last hour"));
    page.wait_for(&facts("– the store has not answered workers alive"));
    page.screenshot("unreachable");
    assert_eq!(page.eval(&count("ready")), json!("1"));

    server.thaw();
    page.wait_for(&format!("{state} === 'ok Live'"));
    page.wait_for(&facts("0 runs in the last hour"));
}

pub(crate) async fn open_file(dir: &Path) -> Store {
    let url = format!("sqlite:{}", dir.join("queues.db").display());
    let store = Store::connect(&url).await.expect("the store opens");
    store.migrate().await.expect("the schema is made");
    store
}

/// Serves the queue with a token, and returns the address.
fn serve_admin(runtime: &Runtime, queue: Queue) -> String {
    let site = Site::of_store(queue).admin(AccessToken::new(TOKEN).expect("it is long enough"));
    serve(runtime, site.build())
}

fn serve(runtime: &Runtime, site: Site) -> String {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    runtime.spawn(async move { site.serve(listener).await });
    url
}

/// Returns a script that is true if the newest of the last actions has these texts after its time.
fn is_last_action(texts: &str) -> String {
    format!(
        "[...document.querySelectorAll('#actions tbody tr:first-child td')]
            .map((cell) => cell.textContent).join() === '{texts}'"
    )
}

/// Returns a script that is true if the rows of the table of groups have these texts, cell by cell.
fn shows_groups(rows: &[&str]) -> String {
    shows_rows("groups", 7, rows)
}

/// Returns a script that is true if the rows of a table have these texts in the first `cells`.
pub(crate) fn shows_rows(table: &str, cells: usize, rows: &[&str]) -> String {
    let rows = json!(rows).to_string();
    format!(
        "JSON.stringify([...document.querySelectorAll('#{table} tbody tr')].map((row) => \
         [...row.children].slice(0, {cells}).map((cell) => cell.textContent).join(' '))) === '{rows}'"
    )
}

#[test]
fn groups_are_shown_and_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let queue = runtime.block_on(async {
        let store = open_file(dir.path()).await;
        let opening = store.queue("orders").group_by("^[^/]*").group_limit(2).claim_ahead(0);
        let queue = opening.open().await.expect("the queue opens");
        queue.add_all(["<b>/1", "<b>/2", "<b>/3", "/"]).await.expect("added");
        queue.group("zeta").set_weight(3).await.expect("set");
        let rate = Rate::new(90, std::time::Duration::from_secs(60)).burst(4);
        queue.group("zeta").set_rate(Some(rate)).await.expect("set");
        queue.set_rate(Some("1000".parse().expect("a rate"))).await.expect("set");
        queue
    });
    let items = runtime.block_on(queue.get_many(1));
    assert_eq!(items.len(), 1);
    let url = serve_admin(&runtime, queue);
    let Some(page) = browser("groups_are_shown_and_changed", &url) else { return };
    page.wait_for("document.querySelectorAll('#groups tbody tr').length === 3");
    let click =
        |selector: &str| page.eval(&format!("document.querySelector('{selector}').click()"));
    let facts = "document.querySelector('#facts').textContent";
    page.wait_for(&format!("{facts}.includes(' · rate 1,000/s, burst 200 · ')"));
    click("#groups [data-column=name]");
    let first = if items[0].group() == Some("") { 3 } else { 2 };
    let no_group = if first == 3 { "(no group) 0 0 1 2 – 1" } else { "(no group) 1 0 0 2 – 1" };
    let b = if first == 3 { "<b> 3 0 0 2 – 1" } else { "<b> 2 0 1 2 – 1" };
    page.wait_for(&shows_groups(&[no_group, b, "zeta 0 0 0 2 90/min, burst 4 3"]));
    click("#groups [data-column=name]");
    page.wait_for(&shows_groups(&["zeta 0 0 0 2 90/min, burst 4 3", b, no_group]));
    let sorted = "document.querySelector('#groups th[aria-sort]').ariaSort";
    assert_eq!(page.eval(sorted), json!("descending"));
    let note = "document.querySelector('#groups-shown').textContent";
    assert_eq!(page.eval(note), json!("3 groups"));
    // The buttons need the token.
    let visible = "document.querySelector('#groups tbody button').checkVisibility()";
    assert_eq!(page.eval(visible), json!(false));
    unlock(&page, TOKEN);
    page.wait_for("document.body.dataset.admin === 'open'");
    assert_eq!(page.eval(visible), json!(true));
    page.eval("document.querySelector('#groups').scrollIntoView()");
    page.screenshot("groups");
    let done = |text: &str| format!("document.querySelector('#done').textContent === '{text}'");
    page.eval("document.querySelector('#groups tbody tr:nth-child(2) button').focus()");
    page.press("Enter");
    page.wait_for("document.activeElement.matches('#confirm [name=note]')");
    page.type_text("an import runs wild");
    page.press("Enter");
    page.wait_for(&done("The group <b> is paused."));
    // The label of the button has changed, and it still has the focus.
    let focus = "document.activeElement.getAttribute('aria-label')";
    page.wait_for(&format!("{focus} === 'Resume <b>'"));
    page.wait_for(&is_last_action("ann,group pause,<b>,an import runs wild"));
    let paused = b.replace(" 2 – 1", " paused – 1");
    page.wait_for(&shows_groups(&["zeta 0 0 0 2 90/min, burst 4 3", &paused, no_group]));
    click("#groups tbody tr:nth-child(2) button");
    page.wait_for(&done("The group <b> is resumed."));
    for (text, limit, said) in [("5", "5", "5"), ("", "2", "that of the queue")] {
        click("#groups tbody tr:first-child button:last-child");
        page.eval("document.querySelector('#group-limit input').select()");
        if text.is_empty() {
            page.eval("document.querySelector('#group-limit input').value = ''");
        } else {
            page.type_text(text);
        }
        page.press("Tab");
        page.type_text(&format!("for {said}"));
        page.press("Enter");
        page.wait_for(&done(&format!("The limit of the group zeta is {said}.")));
        page.wait_for(&shows_groups(&[
            &format!("zeta 0 0 0 {limit} 90/min, burst 4 3"),
            b,
            no_group,
        ]));
        let value = if text.is_empty() { "none" } else { text };
        page.wait_for(&is_last_action(&format!("ann,group limit,zeta: {value},for {said}")));
    }
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn schedules_are_shown_and_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let queue = runtime.block_on(async {
        let store = open_file(dir.path()).await;
        store.queue("orders").open().await.expect("the queue opens")
    });
    let url = serve_admin(&runtime, queue.clone());
    let Some(page) = browser("schedules_are_shown_and_changed", &url) else { return };
    page.wait_for("document.body.dataset.link === 'live'");
    let visible = |selector: &str| {
        format!("document.querySelector('#schedules {selector}')?.checkVisibility() === true")
    };
    page.wait_for("document.querySelector('#schedules-shown').textContent === '0 schedules'");
    assert_eq!(page.eval(&visible("table")), json!(false), "there is no schedule");
    runtime.block_on(async {
        let yearly = Schedule::cron("@yearly", "UTC").expect("valid");
        queue.schedule("<b>", yearly.clone()).await.expect("stored");
        queue.schedule("zeta", yearly).await.expect("stored");
        queue.pause_schedule("zeta").await.expect("paused");
    });
    page.wait_for(&visible("table"));
    let click = |selector: &str| {
        page.eval(&format!("document.querySelector('#schedules {selector}').click()"))
    };
    // The next time is not compared, because it changes.
    let shows = |rows: &[&str]| shows_rows("schedules", 3, rows);
    let states = "[...document.querySelectorAll('#schedules tbody tr')].map((row) => \
                  row.children[4].textContent).join(' ')";
    page.wait_for(&shows(&["<b> @yearly UTC", "zeta @yearly UTC"]));
    assert_eq!(page.eval(states), json!("– paused"));
    click("[data-column=key]");
    click("[data-column=key]");
    page.wait_for(&shows(&["zeta @yearly UTC", "<b> @yearly UTC"]));
    assert_eq!(page.eval(&visible("tbody button")), json!(false), "a button needs the token");
    unlock(&page, TOKEN);
    page.wait_for("document.body.dataset.admin === 'open'");
    assert_eq!(page.eval(&visible("tbody button")), json!(true));
    page.eval("document.querySelector('#schedules').scrollIntoView()");
    page.screenshot("schedules");
    let done = |text: &str| format!("document.querySelector('#done').textContent === '{text}'");
    click("tbody tr:first-child [data-action=resume]");
    page.wait_for(&done("The schedule of zeta is resumed."));
    page.wait_for(&format!("{states} === '– –'"));
    click("tbody tr:first-child [data-action=pause]");
    page.wait_for("document.querySelector('#confirm').open");
    page.press("Enter");
    page.wait_for(&done("The schedule of zeta is paused."));
    page.wait_for(&format!("{states} === 'paused –'"));

    click("tbody tr:last-child [data-action=change]");
    page.eval("document.querySelector('#times [name=spec]').select()");
    page.type_text("30 2 * *");
    page.press("Enter");
    page.wait_for(
        "document.querySelector('#times .problem').textContent.includes('it has 4 fields')",
    );
    page.eval("document.querySelector('#times [name=spec]').value = 'every 5m'");
    page.eval("document.querySelector('#times [name=zone]').value = ''");
    page.eval("document.querySelector('#times [name=note]').value = 'too late'");
    page.press("Enter");
    page.wait_for(&done("The schedule of <b> is changed."));
    page.wait_for(&is_last_action("ann,schedule add,<b>,too late"));
    page.wait_for(&shows(&["zeta @yearly UTC", "<b> every 5m –"]));

    let focus = "document.activeElement.getAttribute('aria-label')";
    page.eval("document.querySelector('#schedules tbody [data-action=remove]').focus()");
    page.press("Enter");
    page.wait_for("document.querySelector('#confirm').open");
    page.press("Enter");
    page.wait_for(&done("The schedule of zeta is removed."));
    page.wait_for(&shows(&["<b> every 5m –"]));
    // The row was removed. The focus is on the same button of the row that replaces it.
    page.wait_for(&format!("{focus} === 'Remove <b>'"));
    let complaints = page.complaints();
    // The browser reports the refused request.
    assert!(complaints.len() == 1 && complaints[0].contains("/schedule-add"), "{complaints:?}");
}

#[test]
fn longer_ranges_and_held_keys_come_from_the_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let queue = runtime.block_on(async {
        let store = open_file(dir.path()).await;
        let opening = store.queue("orders").group_by("^[^/]*").group_limit(1).claim_ahead(0);
        let queue = opening.worker("web-1").open().await.expect("the queue opens");
        queue.add_all(["acme/1", "acme/2", "acme/3"]).await.expect("added");
        queue
    });
    let running = runtime.block_on(async {
        let item = queue.get().await.expect("the queue is open");
        item.give_up("no such address: 17").await.expect("the lease is held");
        let running = queue.get().await.expect("the queue is open");
        queue.activity(std::time::Duration::ZERO).await.expect("written");
        running
    });
    let key = running.key().to_string();
    let operator = queue.clone();
    let url = serve_admin(&runtime, queue);
    let Some(page) = browser("longer_ranges_and_held_keys_come_from_the_store", &url) else {
        return;
    };
    let cells = |table: &str, columns: usize| {
        format!(
            "[...document.querySelectorAll('#{table} tbody tr')].map((row) => \
             [...row.cells].slice(0, {columns}).map((cell) => cell.textContent).join('|')).join()"
        )
    };
    page.wait_for(&format!("{} === 'limit of group acme|1'", cells("waits", 2)));
    let facts = "document.querySelector('#facts').textContent";
    page.wait_for(&format!("{facts}.includes('each ready key is held back by its group')"));
    page.wait_for(&format!("{facts}.includes('1 given up, 1 parked now')"));
    let parked = "document.querySelector('#facts a').getAttribute('href')";
    assert_eq!(page.eval(parked), json!("?state=parked&sort=age&order=desc"));
    page.wait_for(&format!("{} === '{key}'", cells("longest", 1)));
    page.wait_for(&format!("{}.endsWith('|web-1')", cells("longest", 3)));
    page.wait_for(&format!("{}.startsWith('no such address: #|1|1|acme/')", cells("failures", 6)));

    let label = "document.querySelector('#rates .plot').getAttribute('aria-label')";
    for (range, time, step) in
        [("3600", "1 h", "1 min"), ("86400", "24 h", "8 min"), ("604800", "7 days", "56 min")]
    {
        page.eval(&format!("document.querySelector('[name=range][value=\"{range}\"]').click()"));
        page.wait_for(&format!(
            "{label}.startsWith('Events per minute in the last {time}, now: ')"
        ));
        page.wait_for("document.querySelector('#rates .none') === null");
        page.wait_for(&format!(
            "document.querySelector('#worked .over').textContent === 'per {step}'"
        ));
    }
    page.screenshot("range-7-days");
    page.eval("document.querySelector('[name=range]').click()");
    page.wait_for(&format!("{label}.startsWith('Events per second in the last ')"));

    runtime.block_on(async {
        operator.group("acme").pause().await.expect("paused");
        let action = ActionRecord::new("group-pause", "ann").target("acme");
        operator.record_action(action).await.expect("recorded");
    });
    page.wait_for(&format!("{} === 'group acme, paused by ann|1'", cells("waits", 2)));
    page.screenshot("paused-group");
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn the_page_of_a_parked_key_tells_how_to_run_it_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let queue = runtime.block_on(async {
        let queue = open_file(dir.path()).await.queue("orders").open().await.expect("it opens");
        for key in ["a", "--all", "two\nlines"] {
            queue.add(key).await.expect("added");
            let item = queue.get().await.expect("the queue is open");
            item.give_up("no such address: 17").await.expect("the lease is held");
        }
        queue
    });
    // A site without a token has no actions.
    let read_only = serve(&runtime, Site::of_store(queue.clone()).build());
    let url = serve_admin(&runtime, queue);
    let test = "the_page_of_a_parked_key_tells_how_to_run_it_again";
    let Some(page) = browser(test, &url) else { return };
    let shows = |ways: &str| format!("{}.includes('{ways}')", text("#key-revival"));
    for (key, word) in [("a", "a"), ("--all", "-- --all"), ("two%0Alines", "KEY")] {
        page.open(&format!("{url}?key={key}"));
        let command = format!("requeue revive --store URL --queue orders {word}");
        let ways = format!("Unlock actions, then Revive on this page, or {command}");
        page.wait_for(&format!("{}.endsWith('{ways}')", text("#key-revival")));
    }
    let why = "it runs again only after a revive, or an add that revives it";
    page.wait_for(&format!("{}.includes('{why}')", text("#key-why")));
    page.screenshot("parked-key");
    unlock(&page, TOKEN);
    page.wait_for(&shows("again: Revive on this page, or requeue"));
    page.open(&format!("{read_only}?key=a"));
    page.wait_for(&shows("again: requeue revive --store"));
    assert_eq!(page.complaints(), [""; 0]);
}

/// With this many groups, the store does not leave out held keys from the age of the oldest ready key.
#[test]
fn an_age_that_may_be_that_of_a_held_key_is_not_late() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let queue = runtime.block_on(async {
        let store = open_file(dir.path()).await;
        let queue = store.queue("orders").group_by("^[^/]*").open().await.expect("it opens");
        queue.group("0").pause().await.expect("paused");
        queue.add_all((0..1001).map(|n| format!("{n}/1"))).await.expect("added");
        queue
    });
    let site = Site::of_store(queue).target(Duration::from_nanos(1)).build();
    let url = serve(&runtime, site);
    let test = "an_age_that_may_be_that_of_a_held_key_is_not_late";
    let Some(page) = browser(test, &url) else { return };
    page.wait_for(&format!("{}.includes(': its group may hold it back')", text("#facts")));
    assert_eq!(page.eval("document.querySelectorAll('#facts a.late').length"), json!(0));
    let rest = "worker1,000– known for all ready keys only";
    page.wait_for(&format!("{}.includes('{rest}')", text("#waits")));
    assert_eq!(page.complaints(), [""; 0]);
}
