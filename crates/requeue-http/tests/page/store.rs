//! The dashboard of a queue in a store.

use requeue_http::Site;
use requeue_servers::Redis;
use requeue_store::Store;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::{browser, count};

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
    let site = Site::of_store(queue).build();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    runtime.spawn(async move { site.serve(listener).await });
    let test = "numbers_that_are_old_are_shown_with_their_age";
    let Some(page) = browser(test, &url) else { return };
    page.wait_for(&format!("{} === '1'", count("ready")));
    let facts =
        |text: &str| format!("document.querySelector('#facts').textContent.includes('{text}')");
    page.wait_for(&facts("open · 0 runs"));

    server.freeze();
    page.wait_for(&facts("store unreachable · keys counted "));
    page.wait_for(&facts(" ago · 0 runs"));
    assert_eq!(page.eval(&count("ready")), json!("1"));

    server.thaw();
    page.wait_for(&facts("open · 0 runs"));
}
