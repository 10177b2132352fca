//! Actions on the dashboard, and pages of other sites that try to send actions.

use super::*;

const DONE: &str = "document.querySelector('#done').textContent";

#[track_caller]
fn click(page: &Chromium, selector: &str) {
    page.eval(&format!("document.querySelector('{selector}').click()"));
}

#[test]
fn actions_are_locked_until_the_token_is_entered() {
    let served = Served::start();
    served.queue.add(b"a".to_vec());
    let test = "actions_are_locked_until_the_token_is_entered";
    let Some(page) = browser(test, &served.url("/queue")) else { return };
    page.wait_for(&format!("{SHOWN}.length === 1"));
    let visible = "[...document.querySelectorAll('button')]
        .filter((button) => button.checkVisibility()).map((button) => button.textContent).join()";
    let columns = "Key,State,Age,Attempt,Due in";
    assert_eq!(page.eval(visible), json!(format!("Unlock actions,{columns}")));
    unlock(&page, "a-wrong-token-of-16");
    page.wait_for("document.querySelector('#token .problem').textContent === 'wrong token'");
    assert_eq!(page.eval("document.body.dataset.admin"), json!("locked"));
    page.wait_for("document.activeElement.matches('#token [name=token]')");
    page.type_text(TOKEN);
    page.press("Enter");
    page.wait_for("document.body.dataset.admin === 'open'");
    let open = format!("Add a key,Pause,Lock,Run now,Cancel,Cancel the run,Revive,{columns}");
    assert_eq!(page.eval(visible), json!(open));

    // The token is only in the memory of the page.
    let stored = "document.cookie + JSON.stringify([localStorage, sessionStorage]) + location.href
        + document.querySelector('#token input').value";
    assert!(!page.eval(stored).to_string().contains(TOKEN));
    click(&page, "#lock");
    page.wait_for("document.body.dataset.admin === 'locked'");
    page.open(&served.url("/queue/"));
    page.wait_for("document.body.dataset.link === 'live'");
    assert_eq!(page.eval(visible), json!(format!("Unlock actions,{columns}")));
    // The only error in the console is the wrong token.
    let complaints = page.complaints();
    assert!(complaints.iter().all(|text| text.contains("401")), "{complaints:?}");
}

#[test]
fn each_action_is_one_of_the_page_and_says_what_it_has_done() {
    let served = Served::start();
    let test = "each_action_is_one_of_the_page_and_says_what_it_has_done";
    let Some(page) = browser(test, &served.url("/")) else { return };
    unlock(&page, TOKEN);
    page.wait_for("document.body.dataset.admin === 'open'");

    // Add a key with the keyboard only.
    page.eval("document.querySelector('#add').focus()");
    page.press("Enter");
    page.wait_for("document.activeElement.matches('#new [name=key]')");
    page.type_text("src/<b>");
    page.press("Tab");
    page.type_text("90");
    page.press("Tab");
    page.press("Tab");
    page.type_text("by hand");
    page.press("Enter");
    page.wait_for(&format!("{DONE} === 'src/<b>: new'"));
    page.wait_for(&format!("{}.includes('by hand')", text("#actions tbody")));
    page.wait_for(&format!("{} === '1'", count("waiting")));

    click(&page, "#pause");
    page.wait_for("document.querySelector('#confirm').open");
    assert!(!served.queue.is_paused(), "it was not confirmed");
    page.press("Enter");
    page.wait_for(&format!("{DONE} === 'The queue is paused.'"));
    assert!(served.queue.is_paused());
    page.wait_for("document.querySelector('#pause').textContent === 'Resume'");
    click(&page, "#pause");
    page.wait_for(&format!("{DONE} === 'The queue is open.'"));
    assert!(!served.queue.is_paused());

    // Act on a single key.
    page.wait_for(&format!("{SHOWN}.length === 1"));
    click(&page, "#keys tbody a");
    page.wait_for(&format!("{}.includes('waiting')", text("#key-facts")));
    let question = |asked: &str| {
        page.wait_for(&format!(
            "document.querySelector('#confirm').open && {} === '{asked}'",
            text("#question")
        ));
    };
    click(&page, "#key-actions [data-action=run-now]");
    question("Run now: 1 key, src/<b>?");
    page.press("Enter");
    page.wait_for(&format!("{DONE} === 'src/<b>: made ready.'"));
    assert_eq!(served.queue.len(), 1);
    let name = b"src/<b>".to_vec();
    let item = served.queue.try_get().map(requeue::Item::into_owned).expect("a key is ready");
    page.wait_for(&format!("{}.includes('running')", text("#key-facts")));
    click(&page, "#key-actions [data-action=cancel-run]");
    question("Cancel the run: 1 key, src/<b>?");
    page.press("Enter");
    page.wait_for(&format!("{DONE} === 'src/<b>: the run is cancelled.'"));
    assert!(item.cancel_reason().is_some());
    item.complete(Completion::GiveUp);
    served.history.gave_up(&name, Run::new(3).error("exit status: 1"));
    page.wait_for(&format!("{}.includes('parked')", text("#key-facts")));
    click(&page, "#key-actions [data-action=revive]");
    question("Revive: 1 key, src/<b>?");
    page.press("Enter");
    page.wait_for(&format!("{DONE} === 'src/<b>: revived.'"));
    assert_eq!(served.queue.len(), 1);
    click(&page, "#key-actions [data-action=cancel]");
    question("Cancel: 1 key, src/<b>?");
    click(&page, "#confirm .close");
    page.wait_for("!document.querySelector('#confirm').open");
    assert_eq!(served.queue.len(), 1, "it was not confirmed");
    click(&page, "#key-actions [data-action=cancel]");
    question("Cancel: 1 key, src/<b>?");
    // A busy browser reports the close of the previous dialog late.
    page.wait_for("document.querySelector('#confirm').dispatchEvent(new Event('close'))");
    page.press("Enter");
    page.wait_for(&format!("{DONE} === 'src/<b>: cancelled.'"));
    assert!(served.queue.look_up(&name).is_none());
    is_clean_of(&page, &served, "404");
}

#[test]
fn all_keys_of_a_search_are_changed_after_their_number_is_confirmed() {
    let served = Served::start();
    served.queue.add_all((0..300).map(|n| format!("docs/{n}").into_bytes()));
    served.queue.add_all((0..40).map(|n| format!("src/{n}").into_bytes()));
    let test = "all_keys_of_a_search_are_changed_after_their_number_is_confirmed";
    let Some(page) = browser(test, &served.url("/?q=src/&state=ready")) else { return };
    page.wait_for(&format!("{SHOWN}.length === 40"));
    unlock(&page, TOKEN);
    page.wait_for("document.body.dataset.admin === 'open'");
    let asked = "Cancel: 40 keys in the state ready, with “src/”?";
    let question =
        format!("document.querySelector('#confirm').open && {} === '{asked}'", text("#question"));
    click(&page, "#bulk [data-action=cancel]");
    page.wait_for(&question);
    // More keys are added after the number was shown.
    served.queue.add_all((40..60).map(|n| format!("src/{n}").into_bytes()));
    page.press("Enter");
    page.wait_for(&format!("{DONE}.startsWith('60 matching keys, but 40 were confirmed')"));
    assert_eq!(served.queue.len(), 360);
    click(&page, "#bulk [data-action=cancel]");
    page.wait_for(&format!("{}.startsWith('Cancel: 60 keys')", text("#question")));
    page.press("Enter");
    page.wait_for(&format!("{DONE} === '60 keys cancelled.'"));
    assert_eq!(served.queue.len(), 300);
    click(&page, "#bulk [data-action=cancel]");
    page.wait_for("document.querySelector('#confirm').open === false");
    let nothing = "Cancel: no key in the state ready, with “src/” can be changed in this way.";
    page.wait_for(&format!("{DONE} === '{nothing}'"));
    is_clean_of(&page, &served, "409");
}

/// Checks that the page had no errors except responses with this status, and sent no request to other hosts.
#[track_caller]
fn is_clean_of(page: &Chromium, served: &Served, status: &str) {
    let complaints = page.complaints();
    assert!(complaints.iter().all(|text| text.contains(status)), "{complaints:?}");
    let own = served.url("/");
    assert!(page.requests().iter().all(|url| url.starts_with(&own)));
}

#[test]
fn a_page_of_another_site_changes_nothing_even_with_the_token() {
    let served = Served::start();
    served.queue.add(b"a".to_vec());
    let listener = served.runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let html = || async { axum::response::Html("<!doctype html><title>evil</title><body>") };
    let app = Router::new().route("/", axum::routing::get(html));
    served.runtime.spawn(async move { axum::serve(listener, app).await });
    let test = "a_page_of_another_site_changes_nothing_even_with_the_token";
    let Some(chromium) = chromium::find(test) else { return };
    let page = Chromium::start(&chromium, test);
    let (cancel, pause) = (served.url("/api/v1/cancel"), served.url("/api/v1/pause"));
    page.open(&format!("http://localhost:{port}/"));
    let body = r#"JSON.stringify({ keys: [{ key: "a" }] })"#;
    let attacks = [
        format!(
            "fetch('{cancel}', {{ method: 'POST', body: {body}, headers: {{
                'Content-Type': 'application/json', Authorization: 'Bearer {TOKEN}' }} }})"
        ),
        format!("fetch('{cancel}', {{ method: 'POST', mode: 'no-cors', body: {body} }})"),
        format!("fetch('{pause}', {{ method: 'POST', mode: 'no-cors', credentials: 'include' }})"),
        format!("fetch('{pause}', {{ mode: 'no-cors' }})"),
        format!("Promise.resolve(navigator.sendBeacon('{pause}', 'x'))"),
    ];
    for attack in attacks {
        page.eval(&format!("{attack}.then(() => 0, () => 0)"));
    }
    page.eval(&format!(
        "new Promise((done) => {{
            const [form, frame] = ['form', 'iframe'].map((name) => document.createElement(name));
            Object.assign(form, {{ action: '{pause}', method: 'post', target: 'frame' }});
            Object.assign(frame, {{ name: 'frame', onload: done }});
            document.body.append(frame, form);
            form.submit();
        }}).then(() => 0)"
    ));
    assert!(served.queue.len() == 1 && !served.queue.is_paused());
    // A page of the same origin is not refused.
    page.open(&served.url("/"));
    page.eval(&format!(
        "fetch('{pause}', {{ method: 'POST', headers: {{ Authorization: 'Bearer {TOKEN}' }} }})"
    ));
    assert!(served.queue.is_paused());
}

/// The labels of the offered actions in a group.
fn offered(group: &str) -> String {
    format!(
        "[...document.querySelectorAll('{group} button')]
            .filter((button) => button.checkVisibility()).map((button) => button.textContent).join()"
    )
}

#[test]
fn only_actions_that_have_an_effect_are_offered() {
    let served = Served::start();
    served.queue.add_all((0..3).map(|n| format!("{n}").into_bytes()));
    let test = "only_actions_that_have_an_effect_are_offered";
    let Some(page) = browser(test, &served.url("/")) else { return };
    unlock(&page, TOKEN);
    page.wait_for("document.body.dataset.admin === 'open'");
    for (state, actions) in [
        ("", "Run now,Cancel,Cancel the run,Revive"),
        ("ready", "Cancel"),
        ("waiting", "Run now,Cancel"),
        ("backing_off", "Run now,Cancel"),
        ("parked", "Cancel,Revive"),
        ("running", "Cancel,Cancel the run"),
    ] {
        click(&page, &format!("#counts [value=\"{state}\"]"));
        page.wait_for(&format!("{} === '{actions}'", offered("#bulk")));
    }
    click(&page, "#counts [value=\"\"]");

    // Act on one key, in several states. The focus stays near a button that is no longer offered.
    page.wait_for(&format!("{SHOWN}.length === 3"));
    let first = page.eval(&format!("{SHOWN}[0]"));
    let name = first.as_str().expect("a key").as_bytes().to_vec();
    click(&page, "#keys tbody a");
    page.wait_for(&format!("{} === 'Cancel'", offered("#key-actions")));
    let mut held = Vec::new();
    while let Some(item) = served.queue.try_get() {
        held.push(item.into_owned());
    }
    page.wait_for(&format!("{} === 'Cancel the run'", offered("#key-actions")));
    page.eval("document.querySelector('#key-actions [data-action=cancel-run]').focus()");
    served.queue.add(name.clone());
    page.wait_for(&format!("{} === 'Cancel,Cancel the run'", offered("#key-actions")));
    page.wait_for("document.activeElement.dataset.action === 'cancel-run'");
    served.queue.cancel(&name);
    let item = held.iter().position(|item| *item.key() == name).expect("it is held");
    held.remove(item).complete(Completion::GiveUp);
    served.history.gave_up(&name, Run::new(3).error("exit status: 1"));
    page.wait_for(&format!("{} === 'Cancel,Revive'", offered("#key-actions")));
    page.wait_for("document.activeElement.dataset.action === 'cancel'");
    // A sign marks destructive actions without colour.
    let sign = |action: &str| {
        let of = format!("document.querySelector('#key-actions [data-action={action}]')");
        page.eval(&format!("getComputedStyle({of}, '::before').content"))
    };
    assert!(sign("cancel").to_string().contains('✕'));
    assert_eq!(sign("revive"), json!("none"));
    is_clean_of(&page, &served, "404");
}

#[test]
fn actions_have_a_name_and_a_note_and_the_last_ones_are_shown() {
    let served = Served::start();
    served.queue.add(b"a".to_vec());
    let test = "actions_have_a_name_and_a_note_and_the_last_ones_are_shown";
    let Some(page) = browser(test, &served.url("/")) else { return };
    assert_eq!(page.eval("document.querySelector('#actions').hidden"), json!(true));
    unlock(&page, TOKEN);
    page.wait_for("document.body.dataset.admin === 'open'");
    // The button that opened the dialog was removed, and the next button has the focus.
    page.wait_for("document.activeElement.id === 'add'");
    page.eval("document.querySelector('#pause').focus()");
    page.press("Enter");
    page.wait_for("document.activeElement.matches('#confirm [name=note]')");
    page.type_text("<b>the API is down");
    page.press("Enter");
    page.wait_for(&format!("{DONE} === 'The queue is paused.'"));
    page.wait_for("document.activeElement.id === 'pause'");
    let rows = "[...document.querySelectorAll('#actions tbody tr')].map((row) =>
        [...row.cells].slice(1).map((cell) => cell.textContent).join()).join('; ')";
    page.wait_for(&format!("{rows} === 'ann,pause,the queue,<b>the API is down'"));
    click(&page, "#bulk [data-action=cancel]");
    page.wait_for("document.querySelector('#confirm').open");
    assert_eq!(page.eval("document.querySelector('#confirm [name=note]').value"), json!(""));
    page.screenshot("confirm");
    page.press("Enter");
    page.wait_for(&format!(
        "{rows} === 'ann,cancel,1 key,–; ann,pause,the queue,<b>the API is down'"
    ));
    assert_eq!(page.eval(&text("#actions-shown")), json!("2 actions"));
    page.eval("document.querySelector('#actions').scrollIntoView()");
    page.screenshot("actions");
    for n in 0..30 {
        served.queue.add(b"a".to_vec());
        let cancel = json!({ "keys": [{ "key": "a" }], "by": format!("{n}") });
        page.eval(&format!(
            "fetch('api/v1/cancel', {{ method: 'POST', body: JSON.stringify({cancel}), headers: {{
                'Content-Type': 'application/json', Authorization: 'Bearer {TOKEN}' }} }})
                .then(({{ ok }}) => ok)"
        ));
    }
    let shown = "document.querySelectorAll('#actions tbody tr').length";
    page.wait_for(&format!("{shown} === 20 && {rows}.startsWith('29,cancel,a,–; 28,')"));
    is_clean(&page, &served);
}

#[test]
fn a_row_keeps_the_focus_when_the_table_is_drawn_again() {
    let served = Served::start();
    served.queue.add_all((0..4).map(|n| format!("{n}").into_bytes()));
    let test = "a_row_keeps_the_focus_when_the_table_is_drawn_again";
    let Some(page) = browser(test, &served.url("/?sort=key&order=asc")) else { return };
    page.wait_for(&format!("{SHOWN}.join() === '0,1,2,3'"));
    page.eval("document.querySelector('#keys tbody tr:nth-child(2) a').focus()");
    // The row moves.
    click(&page, "[data-sort=key]");
    page.wait_for(&format!("{SHOWN}.join() === '3,2,1,0'"));
    assert_eq!(page.eval("document.activeElement.textContent"), json!("1"));
    served.queue.cancel(&b"1".to_vec());
    page.wait_for(&format!("{SHOWN}.join() === '3,2,0'"));
    assert_eq!(page.eval("document.activeElement.textContent"), json!("0"));
    served.queue.cancel(&b"0".to_vec());
    page.wait_for(&format!("{SHOWN}.join() === '3,2'"));
    assert_eq!(page.eval("document.activeElement.textContent"), json!("2"));
    is_clean(&page, &served);
}
