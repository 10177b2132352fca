//! The page of all queues of a store.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Request;
use requeue_http::{AccessToken, Site};
use requeue_servers::Redis;
use requeue_store::Store;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::store::{open_file, shows_rows};
use crate::{CONTRAST, TOKEN, browser, chromium, count, unlock, violations};

/// Serves `site` at two paths: `/kept` is a router with a prefix, and `/cut` is a proxy that removes its prefix.
fn serve(runtime: &Runtime, site: &Site) -> SocketAddr {
    let behind = site.router();
    let proxy = move |mut request: Request| {
        let mut behind = behind.clone();
        let path = request.uri().to_string();
        let path = path.strip_prefix("/cut").expect("only these requests come here");
        *request.uri_mut() = path.parse().expect("a path");
        // A program behind a proxy does not see the first address.
        request.extensions_mut().clear();
        async move { tower_service::Service::call(&mut behind, request).await }
    };
    let app = Router::new().nest_service("/kept", site.router()).fallback(proxy);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("an address");
    runtime.spawn(async move { axum::serve(listener, app).await });
    address
}

async fn fill(store: &Store) {
    let odd = store.queue("a/b <c>").open().await.expect("the queue opens");
    odd.add_all(["x", "y"]).await.expect("added");
    odd.pause().await.expect("paused");
    let mail = store.queue("mail").open().await.expect("the queue opens");
    mail.add("alice").await.expect("added");
    mail.get().await.expect("a key").give_up("no such address").await.expect("the lease is held");
    mail.add_all(["bob", "carol", "dave"]).await.expect("added");
    mail.activity(std::time::Duration::ZERO).await.expect("read");
    store.queue("idle").open().await.expect("the queue opens");
}

/// Returns a script that is true if the names and the last four columns of the rows have these texts.
fn shows(rows: &[&str]) -> String {
    let rows = json!(rows).to_string();
    format!(
        "JSON.stringify([...document.querySelectorAll('#queues tbody tr')].map((row) => \
         [0, 6, 7, 8, 9].map((at) => row.children[at].textContent).join(' '))) === '{rows}'"
    )
}

#[test]
fn all_queues_are_shown_and_lead_to_their_dashboards_behind_a_proxy() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let store = runtime.block_on(open_file(dir.path()));
    runtime.block_on(fill(&store));
    let token = AccessToken::new(TOKEN).expect("it is long enough");
    let site = Site::of_all_queues(store.clone(), |opening| opening).admin(token).build();
    let server = serve(&runtime, &site);
    let test = "all_queues_are_shown_and_lead_to_their_dashboards_behind_a_proxy";
    let Some(page) = browser(test, &format!("http://{server}/kept")) else { return };
    let click =
        |selector: &str| page.eval(&format!("document.querySelector('{selector}').click()"));
    for prefix in ["kept", "cut"] {
        // Only a router with a prefix knows the address without a slash at its end.
        let start = format!("http://{server}/{prefix}/");
        page.open(&start);
        page.wait_for(&shows(&["a/b <c> 2 0 0 0", "idle 0 0 0 0", "mail 3 0 0 1"]));
        page.wait_for("document.querySelector('#facts').textContent === '1 paused'");
        let states = "[...document.querySelectorAll('#queues tbody .why')].map((cell) => cell.textContent.split(' ')[0])";
        assert_eq!(page.eval(states), json!(["paused", "open", "open"]));
        click("[data-column=ready]");
        page.wait_for(&shows(&["mail 3 0 0 1", "a/b <c> 2 0 0 0", "idle 0 0 0 0"]));
        assert_eq!(
            page.eval("document.querySelector('#queues th[aria-sort]').ariaSort"),
            json!("descending")
        );
        page.press("/");
        page.type_text("A");
        page.wait_for(&shows(&["mail 3 0 0 1", "a/b <c> 2 0 0 0"]));
        assert_eq!(page.eval("document.activeElement.id"), json!("search"));

        // The queue's dashboard has live numbers, keys and actions.
        let link =
            |selector: &str| page.eval(&format!("document.querySelector('{selector}').href"));
        let at = format!("{start}queues/a%2Fb%20%3Cc%3E/");
        assert_eq!(link("#queues tbody tr:last-child a"), json!(at));
        page.open(&at);
        page.wait_for("document.body.dataset.link === 'live'");
        page.wait_for(&format!("{} === '2'", count("ready")));
        page.wait_for("document.querySelectorAll('#keys tbody tr').length === 2");
        unlock(&page, TOKEN);
        page.wait_for("document.body.dataset.admin === 'open'");
        assert_eq!(link("#all-queues a"), json!(start));
    }
    page.open(&format!("http://{server}/cut/"));

    // A new queue appears, and a dropped queue disappears.
    runtime.block_on(async {
        store.queue("new").open().await.expect("the queue opens");
        store.drop_queue("idle").await.expect("dropped");
    });
    page.wait_for(&shows(&["a/b <c> 2 0 0 0", "mail 3 0 0 1", "new 0 0 0 0"]));
    for (scheme, size, width) in
        [("light", "wide", 1280), ("dark", "medium", 1024), ("light", "narrow", 390)]
    {
        page.look(width, 900, scheme);
        page.screenshot(&format!("queues-{scheme}-{size}"));
        let contrast = page.eval(CONTRAST).as_f64().expect("a number");
        assert!(contrast >= 4.5, "{scheme}: {contrast}");
        let overflow = "document.documentElement.scrollWidth <= innerWidth";
        assert_eq!(page.eval(overflow), json!(true), "{size}");
    }
    // Axe is evaluated with the protocol, because the policy of the page allows no other scripts.
    if let Some(axe) = chromium::axe(test) {
        page.eval(&axe);
        assert_eq!(violations(&page), json!([]));
    }
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn a_store_that_is_away_is_told_with_the_age_of_the_numbers() {
    let Some(server) = Redis::start() else { return };
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let store = runtime.block_on(async {
        let store = Store::connect(&server.url("")).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        store
    });
    let site = Site::of_all_queues(store.clone(), |opening| opening).hint("add --queue {queue}");
    let site = serve(&runtime, &site.build());
    let test = "a_store_that_is_away_is_told_with_the_age_of_the_numbers";
    let Some(page) = browser(test, &format!("http://{site}/kept")) else { return };
    // The page of a store without queues says how to create a queue.
    page.wait_for("document.querySelector('#hint').checkVisibility()");
    let hint = "document.querySelector('#hint code').textContent";
    assert_eq!(page.eval(hint), json!("add --queue NAME"));
    runtime.block_on(async {
        let mail = store.queue("mail").open().await.expect("the queue opens");
        mail.add("a").await.expect("added");
    });
    page.wait_for(&shows(&["mail 1 0 0 0"]));
    assert_eq!(page.eval("document.querySelector('#hint').checkVisibility()"), json!(false));
    server.freeze();
    page.wait_for("document.body.dataset.link === 'lost'");
    let said = "document.querySelector('#link').textContent";
    page.wait_for(&format!("/^Store unreachable: .*; numbers from .* ago$/.test({said})"));
    assert_eq!(page.eval(&shows_rows("queues", 1, &["mail"])), json!(true), "the names stay");
    server.thaw();
    page.wait_for("document.body.dataset.link === 'live'");
    page.wait_for(&shows(&["mail 1 0 0 0"]));
}
