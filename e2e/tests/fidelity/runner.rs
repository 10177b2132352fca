//! Sends the requests of a sequence to both servers.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body as ClientBody;
use requeue_testkit::{ApiServer, Cluster};
use serde_json::{Value, json};

use crate::generator::{Body, Sequence, Step};
use crate::normal::{Normalizer, is_cached};
use crate::report::{Difference, differences};

/// How long the controllers of the real server may need to reach the state of the fake.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a list from the cache is read again.
const ATTEMPTS: usize = 20;

/// The result of one sequence.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) answers: usize,
    /// Answers of the fake with status 501.
    pub(crate) refused: usize,
    /// The answers that differ, each with its differences.
    pub(crate) different: Vec<Vec<Difference>>,
}

/// A response: its status code and its body. The body of a watch is the list of its events.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

/// Runs a sequence on both servers, and compares the answers.
pub(crate) async fn run(real: &Client, fake: &Cluster, sequence: &Sequence) -> Outcome {
    let fake = ApiServer::with_cluster(fake.clone())
        .with_clock(k8s_openapi::jiff::Timestamp::now)
        .client();
    let clients = [real, &fake];
    let mut answers: [Vec<Answer>; 2] = Default::default();
    let mut normalizers = [Normalizer::default(), Normalizer::default()];
    let mut different = Vec::new();
    for (at, step) in sequence.steps.iter().enumerate() {
        let mut normal = Vec::new();
        let before = normalizers[0].clone();
        for side in 0..2 {
            let answer = send(clients[side], step, &answers[side]).await;
            normal.push(normalizers[side].answer(at, step, &answer));
            answers[side].push(answer);
        }
        let mut found = differences(sequence, at, &normal[0], &normal[1]);
        // The cache of the real server may not have the last write yet.
        let mut attempts = if is_cached(step) { ATTEMPTS } else { 0 };
        while !found.is_empty() && attempts > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let answer = send(real, step, &answers[0]).await;
            normalizers[0] = before.clone();
            let normal_real = normalizers[0].answer(at, step, &answer);
            answers[0][at] = answer;
            found = differences(sequence, at, &normal_real, &normal[1]);
            attempts -= 1;
        }
        if !found.is_empty() {
            different.push(found);
        }
        // After a difference, the states may never be equal again.
        if sequence.is_collected && different.is_empty() && step.method != "GET" {
            settle(clients, sequence).await;
        }
    }
    let refused = answers[1].iter().filter(|answer| answer.code == 501).count();
    Outcome { answers: sequence.steps.len(), refused, different }
}

/// Waits until the controllers of the real server have done what the fake does with the request. After a difference,
/// they may never do the same. The next answers then show it.
async fn settle(clients: [&Client; 2], sequence: &Sequence) {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let mut states = [Vec::new(), Vec::new()];
        for (client, state) in clients.into_iter().zip(&mut states) {
            for path in &sequence.lists {
                let list =
                    request(client, "GET", path, "", "application/json", String::new(), None).await;
                let items = list.body["items"].as_array().cloned().unwrap_or_default();
                state.extend(items.iter().map(|item| {
                    let meta = &item["metadata"];
                    let owners = meta["ownerReferences"].as_array().map_or(0, Vec::len);
                    let name = meta["generateName"].as_str().or(meta["name"].as_str());
                    json!([
                        path,
                        name,
                        meta["finalizers"],
                        owners,
                        item["spec"]["finalizers"],
                        meta["deletionTimestamp"].is_null()
                    ])
                }));
            }
        }
        if states[0] == states[1] {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn send(client: &Client, step: &Step, answers: &[Answer]) -> Answer {
    let body = match &step.body {
        Body::Text(text) => fill(text, answers),
        Body::Edited(from, edits) => {
            let mut object = answers[*from].body.clone();
            for (pointer, value) in edits {
                edit(&mut object, pointer, value);
            }
            object.to_string()
        }
    };
    let path = fill(&step.path, answers);
    let last = step.last.as_deref();
    request(client, step.method, &path, step.content_type, step.accept, body, last).await
}

/// Sets the value at a JSON pointer, or removes the field if the value is null.
fn edit(object: &mut Value, pointer: &str, value: &Value) {
    let mut place = object;
    let mut parts = pointer.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        if let (Ok(at), true) = (part.parse::<usize>(), place.is_array()) {
            match place.get_mut(at) {
                Some(inner) => place = inner,
                None => return,
            }
            continue;
        }
        if !place.is_object() {
            *place = json!({});
        }
        if parts.peek().is_none() && value.is_null() {
            if let Some(fields) = place.as_object_mut() {
                fields.remove(part);
            }
            return;
        }
        place = &mut place[part];
    }
    *place = value.clone();
}

/// Puts values of earlier answers into a text.
fn fill(text: &str, answers: &[Answer]) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, found)) = rest.split_once("{{") {
        let Some((reference, after)) = found.split_once("}}") else { break };
        filled += before;
        let value = reference.split_once(':').and_then(|(what, step)| {
            let meta = &answers.get(step.parse::<usize>().ok()?)?.body["metadata"];
            let field = if what == "version" { "resourceVersion" } else { what };
            meta[field].as_str().filter(|value| !value.is_empty())
        });
        // An answer without the value, such as a failure.
        filled += value.unwrap_or("absent");
        rest = after;
    }
    filled + rest
}

async fn request(
    client: &Client,
    method: &str,
    path: &str,
    content_type: &str,
    accept: &str,
    body: String,
    last: Option<&str>,
) -> Answer {
    let is_watch = path.contains("watch=1");
    let mut request = http::Request::builder().method(method).uri(path);
    request = request.header("accept", accept).header("user-agent", "fidelity/1");
    if !body.is_empty() || method == "POST" || method == "PUT" {
        request = request.header("content-type", content_type);
    }
    let sent = async {
        let request = request.body(ClientBody::from(body.into_bytes()))?;
        let response = client.send(request).await?;
        let code = response.status().as_u16();
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            text.extend_from_slice(&data);
            if is_watch && last.is_some_and(|last| has_seen(&text, last)) {
                break;
            }
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((code, text))
    };
    let (code, text) = match sent.await {
        Ok(answer) => answer,
        Err(error) => return Answer { code: 0, body: json!(format!("no answer: {error}")) },
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let body = if is_watch && code == 200 {
        let events = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        Value::Array(events.collect())
    } else {
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    };
    Answer { code, body }
}

/// Returns whether the events contain that of the last object, as whole lines.
fn has_seen(text: &[u8], last: &str) -> bool {
    let text = String::from_utf8_lossy(text);
    let name = format!("\"name\":\"{last}\"");
    text.lines().any(|line| line.contains(&name)) && text.ends_with('\n')
}
