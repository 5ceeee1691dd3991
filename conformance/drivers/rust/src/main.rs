// SPDX-License-Identifier: AGPL-3.0-only
//! The Rust driver of the conformance suite: JSON lines in, calls of `fila`, JSON lines out.
//!
//! One task per request. This module owns reading, replying and cancelling; `operations` turns a
//! request into calls.

mod administration;
mod consumers;
mod fields;
mod operations;
mod span;
mod workers;

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;

use operations::{Failure, Operations};

// The protocol allows 2 s after the end of the input; what takes longer is not waited for.
const LAST_REPLIES_TIME: Duration = Duration::from_secs(1);

/// Requests under way by id; dropping the future of one is how Rust cancels.
type UnderWay = Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>;

#[tokio::main]
async fn main() -> ExitCode {
    let operations = Arc::new(Operations::default());
    let under_way = UnderWay::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut requests = JoinSet::new();
    while let Ok(Some(line)) = lines.next_line().await {
        while requests.try_join_next().is_some() {}
        let Ok(request) = serde_json::from_str::<Value>(&line) else {
            eprintln!("not a JSON object: {line}");
            continue;
        };
        let id = request["id"].as_u64().unwrap_or_default();
        let (cancel, cancelled) = oneshot::channel();
        under_way.lock().await.insert(id, cancel);
        requests.spawn(serve(Arc::clone(&operations), under_way.clone(), request, id, cancelled));
    }
    let _ = tokio::time::timeout(LAST_REPLIES_TIME, requests.join_all()).await;
    // Whatever is open: returning would wait for what blocks.
    std::process::exit(0)
}

async fn serve(
    operations: Arc<Operations>,
    under_way: UnderWay,
    request: Value,
    id: u64,
    cancelled: oneshot::Receiver<()>,
) {
    let outcome = tokio::select! {
        outcome = answer(&operations, &under_way, &request) => outcome,
        Ok(()) = cancelled => Err(Failure::Cancelled),
    };
    under_way.lock().await.remove(&id);
    let (name, value) = match outcome {
        Ok(value) => ("ok", value),
        Err(Failure::Sdk(error)) => ("error", fields::error(&error)),
        Err(Failure::Cancelled) => {
            let value = json!({"kind": "cancelled", "message": "cancelled", "retryable": false});
            ("error", value)
        }
        Err(Failure::Unsupported(why)) => ("unsupported", Value::String(why)),
        Err(Failure::Crashed(text)) => ("crashed", Value::String(text)),
    };
    reply(&json!({"id": id, name: value}));
}

async fn answer(
    operations: &Arc<Operations>,
    under_way: &UnderWay,
    request: &Value,
) -> Result<Value, Failure> {
    if request["op"] != "cancel" {
        return operations.run(request).await;
    }
    let target = request["target"].as_u64().unwrap_or_default();
    if let Some(cancel) = under_way.lock().await.remove(&target) {
        // One that was answered in the meantime needs no cancelling.
        let _ = cancel.send(());
    }
    Ok(json!({}))
}

fn reply(reply: &Value) {
    let mut out = std::io::stdout().lock();
    // With nobody left to read the replies there is nobody to tell.
    let _ = writeln!(out, "{reply}").and_then(|()| out.flush());
}
