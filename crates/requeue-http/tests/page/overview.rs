//! The first screen: whether the queue runs, what fails, what is slow, and the charts.

use super::*;

/// A queue in which a tenant fails.
fn incident(served: &Served) -> Vec<requeue::Item<'static, Vec<u8>>> {
    let take = || served.queue.try_get().map(requeue::Item::into_owned).expect("a key is ready");
    let fail = |key: String, error: String, completion: Completion| {
        served.queue.add(key.clone().into_bytes());
        take().complete(completion);
        let run = Run::new(3).error(error);
        match completion {
            Completion::GiveUp => served.history.gave_up(key, run),
            _ => served.history.failed(key, run),
        }
    };
    for n in 0..30 {
        let error = format!("no answer from 10.0.0.{n}:5432 within {n}s; see <b>");
        fail(format!("acme/orders/{n}"), error, Completion::GiveUp);
    }
    for n in 0..7 {
        let wait = Completion::RetryAfter(Duration::from_secs(3600));
        fail(format!("hooli/contacts/{n}"), "exit status: 7".to_owned(), wait);
    }
    for n in 0..6 {
        let error = format!("unknown field \"{n}\" in <a>");
        let kind = ["row", "column", "page", "file", "line", "word"][n];
        fail(format!("wonka/{kind}"), format!("{kind}: {error}"), Completion::GiveUp);
    }
    served.queue.add_all((0..3).map(|n| format!("globex/invoices/{n}").into_bytes()));
    let running = (0..3).map(|_| take()).collect();
    served.clock.advance(Duration::from_secs(861));
    served.queue.add_after(b"later".to_vec(), Duration::from_secs(60));
    served
        .queue
        .add_all((0..40).map(|n| format!("globex/a/key/that/is/rather/long/{n}").into_bytes()));
    served.clock.advance(Duration::from_secs(45));
    running
}

/// The texts of the cells of a table, by row.
fn cells(table: &str) -> String {
    format!(
        "[...document.querySelectorAll('{table} tbody tr')].map((row) => [...row.cells]
            .map((cell) => cell.textContent).join('|'))"
    )
}

#[test]
fn errors_lead_to_their_keys_and_to_their_revival() {
    let served = Served::start();
    let running = incident(&served);
    let test = "errors_lead_to_their_keys_and_to_their_revival";
    let Some(page) = browser(test, &served.url("/")) else { return };
    let shown = "document.querySelector('#failures-shown').textContent";
    page.wait_for(&format!("{shown} === '43 keys, 8 errors'"));
    let name = "no answer from #:# within #s; see <b>";
    let errors = page.eval(&cells("#failures"));
    let first = errors[0].as_str().expect("text");
    assert!(first.starts_with(&format!("{name}|30|90|acme/orders/")), "{first}");
    let since = first.split('|').nth(4).expect("a cell");
    assert!(since.contains(", "), "the age and the local time: {since}");
    assert!(errors[1].as_str().is_some_and(|row| row.starts_with("exit status: 7|7|7|hooli/")));
    // Five errors are shown until the user asks for all, and a button needs the token.
    let visible = "[...document.querySelectorAll('#failures tbody tr')]
        .filter((row) => row.checkVisibility()).length";
    assert_eq!(page.eval(visible), json!(5));
    page.eval("document.querySelector('#all-failures').click()");
    assert_eq!(page.eval(visible), json!(8));
    let revive = "document.querySelector('#failures tbody button').checkVisibility()";
    assert_eq!(page.eval(revive), json!(false));

    // The keyboard leads to the keys.
    page.eval("document.querySelector('#failures tbody a').focus()");
    page.press("Enter");
    page.wait_for(
        "document.activeElement.id === 'keys' && location.search.includes('state=parked')",
    );
    page.wait_for(&format!(
        "{}.textContent === '30 parked keys with this error'",
        "document.querySelector('#shown')"
    ));
    assert_eq!(page.eval("document.querySelector('#filter q').textContent"), json!(name));
    let seen = "document.querySelector('#keys').getBoundingClientRect().top < innerHeight";
    assert_eq!(page.eval(seen), json!(true));

    unlock(&page, TOKEN);
    page.wait_for("document.body.dataset.admin === 'open'");
    page.eval("document.querySelector('#failures tbody button').click()");
    let asked = format!("Revive: 30 keys in the state parked, with the error “{name}”?");
    page.wait_for(&format!(
        "document.querySelector('#confirm').open && {} === '{asked}'",
        text("#question")
    ));
    page.press("Enter");
    page.wait_for("document.querySelector('#done').textContent === '30 keys revived.'");
    page.wait_for(&format!("{shown} === '13 keys, 7 errors'"));
    page.wait_for("!document.querySelector('#none').hidden");
    // All keys of the table can also be changed together.
    page.eval("document.querySelector('#filter button').click()");
    page.wait_for("location.search === '?state=parked'");
    is_clean(&page, &served);
    drop(running);
}

#[test]
fn the_first_lines_say_whether_the_queue_runs_and_why_keys_wait() {
    let served = Served::start();
    let running = incident(&served);
    let test = "the_first_lines_say_whether_the_queue_runs_and_why_keys_wait";
    let Some(page) = browser(test, &served.url("/")) else { return };
    let health = "document.body.dataset.health";
    page.wait_for(&format!("{health} === 'ok'"));
    let late = "document.querySelector('#facts .late').textContent";
    page.wait_for("document.querySelector('#facts .late') !== null");
    assert_eq!(page.eval(late), json!("oldest ready 45.0 s, over the target of 30.0 s"));
    let longest = page.eval(&cells("#longest"));
    let no_worker = "a queue in memory does not know the worker of a run";
    let expected: Vec<_> =
        (0..3).map(|n| format!("globex/invoices/{n}|15 min 06 s|– {no_worker}")).collect();
    assert_eq!(longest, json!(expected));
    let unknown = "– the queue does not record since when a key waits";
    let waits = [
        "worker|40|45.0 s".to_owned(),
        format!("backoff|7|{unknown}"),
        format!("due time|1|{unknown}"),
    ];
    page.wait_for(&format!("JSON.stringify({}) === '{}'", cells("#waits"), json!(waits)));

    served.queue.pause();
    page.wait_for(&format!("{health} === 'warn'"));
    page.wait_for("document.querySelector('#link').textContent === 'Paused'");
    let since = "document.querySelector('#since')";
    assert_eq!(page.eval(&format!("{since}.textContent")), json!("since unknown"));
    assert!(page.eval(&format!("{since}.title")).as_str().is_some_and(|why| !why.is_empty()));
    page.wait_for(&format!("{}[0] === 'paused queue|40|45.0 s'", cells("#waits")));
    // The pause explains the age, which is then no alarm.
    page.wait_for("document.querySelector('#facts .late') === null");
    let facts = "document.querySelector('#facts').textContent";
    page.wait_for(&format!("{facts}.includes('oldest ready 45.0 s: the queue is paused')"));

    page.screenshot("paused");
    // After the shutdown of the server, the numbers are old.
    served.site.shutdown();
    page.wait_for(&format!("{health} === 'bad'"));
    page.wait_for(&format!("{since}.textContent.startsWith('last numbers ')"));
    is_clean(&page, &served);
    drop(running);
}

#[test]
fn the_keys_or_the_errors_are_on_the_first_screen_of_each_size() {
    let served = Served::start();
    let running = incident(&served);
    let test = "the_keys_or_the_errors_are_on_the_first_screen_of_each_size";
    let Some(page) = browser(test, &served.url("/")) else { return };
    page.wait_for("document.querySelectorAll('#failures tbody tr').length === 8");
    page.wait_for("document.querySelectorAll('#rates path').length === 4");
    for scheme in ["light", "dark"] {
        for (width, height) in [(1600, 900), (1024, 768), (390, 844)] {
            page.look(width, height, scheme);
            page.screenshot(&format!("incident-{width}-{scheme}"));
            page.eval("document.querySelector('#keys').scrollIntoView()");
            page.screenshot(&format!("incident-keys-{width}-{scheme}"));
            page.eval("scrollTo(0, 0)");
            let size = format!("{width} {height}");
            let bottom =
                "document.querySelector('#failures tbody tr').getBoundingClientRect().bottom";
            assert_eq!(page.eval(&format!("{bottom} < innerHeight")), json!(true), "{size}");
            let overflows = "document.documentElement.scrollWidth > innerWidth";
            assert_eq!(page.eval(overflows), json!(false), "{size}");
            // Each row of a wide table has one line, and the charts fill their lines.
            let lines = "Math.max(...[...document.querySelectorAll('#overview tbody tr')]
                .map((row) => row.offsetHeight))";
            let most = if width < 1000 { 100.0 } else { 40.0 };
            let height = page.eval(lines).as_f64().expect("a number");
            assert!(height < most, "{size}: {height}");
            let tops = "new Set([...document.querySelectorAll('#plots figure')]
                .map((figure) => figure.offsetTop)).size";
            let expected = if width < 1000 { 3 } else { 1 };
            assert_eq!(page.eval(tops), json!(expected), "{size}");
        }
    }
    is_clean(&page, &served);
    drop(running);
}

#[test]
fn a_queue_in_memory_has_15_minutes_and_an_empty_chart_has_words() {
    let served = Served::start();
    let test = "a_queue_in_memory_has_15_minutes_and_an_empty_chart_has_words";
    let Some(page) = browser(test, &served.url("/")) else { return };
    page.wait_for("document.querySelector('#worked .none') !== null");
    let words = "[...document.querySelectorAll('.plot .none')].map((text) => text.textContent)";
    let none = "no runs in this time";
    page.wait_for("document.querySelector('#rates .none') !== null");
    assert_eq!(page.eval(words), json!(["no events in this time", none, none]));
    page.wait_for(&format!("/^numbers since \\d/.test({})", text("#begin")));
    let ranges = "[...document.querySelectorAll('[name=range]')].map((input) =>
        [input.disabled, input.closest('label').title])";
    let no = json!([true, "A queue in memory keeps 15 minutes."]);
    assert_eq!(page.eval(ranges), json!([[false, ""], no, no, no]));
    page.wait_for("document.querySelector('#failures-shown').textContent === 'no failing keys'");
    assert_eq!(page.eval("document.querySelector('#failures table').hidden"), json!(true));

    // A curve begins with the first number.
    let begin = page.eval(&format!(
        "import('{}').then(({{ spark }}) => {{
            const element = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
            const samples = [[0, null], [30, 4], [60, 4]].map(([t, keys]) => ({{ t, keys }}));
            spark(element, samples, ({{ keys }}) => keys);
            return element.lastChild.getAttribute('d');
        }})",
        served.url("/plot.js")
    ));
    assert_eq!(begin, json!("M50.0 1.0h.1L100.0 1.0"));
    is_clean(&page, &served);
}
