//! `/api/v1/events`, and the end of a server.

use std::net::TcpStream;
use std::time::Duration;

use requeue_http::Site;
use serde_json::json;

use crate::client::{Events, get};
use crate::{Served, queue};

#[test]
fn events_are_what_was_then_each_second_then_the_end() {
    let (queue, _) = queue();
    queue.add(b"a".to_vec());
    let served = Served::new(Site::builder(queue.clone()));
    let mut events = Events::of(served.address);
    let (name, history) = events.next().unwrap();
    assert_eq!(name, "history");
    let samples = history["samples"].as_object().unwrap();
    assert_eq!(samples["ready"].as_array().unwrap().last(), Some(&json!(1)));
    let len = samples["t"].as_array().unwrap().len();
    assert!(len > 0 && samples.values().all(|column| column.as_array().unwrap().len() == len));

    let (name, tick) = events.next().unwrap();
    assert_eq!((&*name, &tick["now"]["ready"]), ("tick", &json!(1)));
    assert_eq!(tick["started"], history["started"]);
    // Without a history, the site knows no parked keys. No key has run in the last minute.
    for (column, value) in tick["now"].as_object().unwrap() {
        let is_none = ["parked", "damaged"].contains(&&**column)
            || column.ends_with("_mean")
            || column.contains("_p");
        assert!(samples.contains_key(column) && value.is_number() != is_none, "{column}: {value}");
    }
    queue.add(b"b".to_vec());
    while events.next().unwrap().1["now"]["ready"] != json!(2) {}

    queue.add(b"c".to_vec());
    served.site.shutdown();
    // More ticks may arrive first.
    let mut rest = std::iter::from_fn(|| events.next());
    let (_, last) = rest.find(|(name, _)| name == "ended").expect("the end is announced");
    assert_eq!((&last["status"], &last["now"]["ready"]), (&json!("ended"), &json!(3)));
    assert_eq!(events.next(), None);
}

#[test]
fn a_page_that_is_opened_later_has_what_was_before() {
    let (queue, _) = queue();
    let served = Served::new(Site::builder(queue.clone()));
    let mut events = Events::of(served.address);
    let started = events.next().unwrap().1["started"].clone();
    queue.add(b"a".to_vec());
    while events.next().unwrap().1["now"]["adds"] != json!(1) {}
    drop(events);
    // The add is in the sample of this second or of the next one.
    let adds = loop {
        let mut events = Events::of(served.address);
        let (_, history) = events.next().unwrap();
        assert_eq!(history["started"], started);
        let adds = history["samples"]["adds"].as_array().unwrap().clone();
        if adds.last() == Some(&json!(1)) {
            break adds;
        }
        // The tick arrives with the next sample.
        events.next().unwrap();
    };
    assert_eq!(adds[0], json!(0));
}

#[test]
fn the_end_is_not_held_up_by_those_who_stay() {
    let served = Served::new(Site::builder(queue().0));
    let mut events = Events::of(served.address);
    events.next().unwrap();
    // This client neither sends a request nor closes the connection.
    let _idle = TcpStream::connect(served.address).unwrap();
    assert_eq!(get(served.address, "/healthz").status, 200);
    served.site.shutdown();
    let ended = served
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(900), served.server).await });
    ended.expect("the server ends").expect("the server does not panic").expect("the server served");
    assert!(TcpStream::connect(served.address).is_err());
}

#[test]
fn what_is_said_of_a_key_may_panic() {
    let (queue, _) = queue();
    queue.add(b"a".to_vec());
    let site = Site::builder(queue.clone()).detail(|_| panic!("a program's own trouble"));
    let served = Served::new(site);
    let _item = queue.try_get().unwrap();
    let mut events = Events::of(served.address);
    assert_eq!(events.next().unwrap().0, "history");
    assert_eq!(events.next().unwrap().1["longest"][0]["key"], json!("a"));
    assert_eq!(get(served.address, "/api/v1/key?key=a").json()["detail"], json!({}));
}
