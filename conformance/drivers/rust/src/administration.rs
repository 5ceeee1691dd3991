// SPDX-License-Identifier: AGPL-3.0-only
//! The requests of the protocol that operate a broker.

use std::time::UNIX_EPOCH;

use fila::{AclEntry, ApiKeyOptions, PeekOptions, RedriveOptions, Subject, ThrottleFilter};
use serde_json::{Value, json};

use crate::fields::{self, ms, number, owned, required, short, text};
use crate::operations::{Failure, Operations, Outcome, done};

/// What a request gives.
pub async fn administer(all: &Operations, given: &Value) -> Outcome {
    let op = text(given, "op").unwrap_or_default();
    match op {
        "create_queue" | "ensure_queue" | "update_queue" | "delete_queue" | "list_queues"
        | "stats" | "peek" | "explain" => queue(all, op, given).await,
        "set_config" | "get_config" | "set_config_all" | "delete_config" | "list_config" => {
            config(all, op, given).await
        }
        "create_api_key" | "revoke_api_key" | "list_api_keys" | "set_acl" | "get_acl" => {
            access(all, op, given).await
        }
        "purge" => {
            let key = text(given, "fairness_key");
            let purged = all.client(given).await?.purge(required(given, "queue")?, key).await?;
            Ok(json!({"purged": purged}))
        }
        "pause" => {
            let key = text(given, "fairness_key");
            done(all.client(given).await?.pause(required(given, "queue")?, key).await)
        }
        "resume" => {
            let key = text(given, "fairness_key");
            done(all.client(given).await?.resume(required(given, "queue")?, key).await)
        }
        "cancel_message" => {
            let (queue, id) = (required(given, "queue")?, required(given, "message_id")?);
            done(all.client(given).await?.cancel(queue, id).await)
        }
        "redrive" => {
            let options = RedriveOptions { count: number(given, "count"), ..Default::default() };
            let queue = required(given, "queue")?;
            let redriven = all.client(given).await?.redrive(queue, options).await?;
            Ok(json!({"redriven": redriven}))
        }
        "list_throttles" => list_throttles(all, given).await,
        "pause_throttle" => {
            let (key, duration) = (required(given, "key")?, ms(given, "duration_ms"));
            done(all.client(given).await?.pause_throttle(key, duration).await)
        }
        "resume_throttle" => {
            done(all.client(given).await?.resume_throttle(required(given, "key")?).await)
        }
        _ => Err(Failure::Unsupported(format!("unknown op {op}"))),
    }
}

async fn queue(all: &Operations, op: &str, given: &Value) -> Outcome {
    let settings = fields::queue_settings(&given["settings"]);
    match op {
        "create_queue" => {
            let queue = required(given, "queue")?;
            let letters = all.client(given).await?.create_queue(queue, settings).await?;
            Ok(json!({"dead_letter_queue": letters}))
        }
        "ensure_queue" => {
            let queue = required(given, "queue")?;
            let letters = all.client(given).await?.ensure_queue(queue, settings).await?;
            Ok(json!({"dead_letter_queue": letters}))
        }
        "update_queue" => {
            let queue = required(given, "queue")?;
            let config = all.client(given).await?.update_queue(queue, settings).await?;
            Ok(json!({"settings": fields::queue_config(&config)}))
        }
        "delete_queue" => delete_queue(all, given).await,
        "list_queues" => list_queues(all, given).await,
        "stats" => stats(all, given).await,
        "peek" => peek(all, given).await,
        _ => explain(all, given).await,
    }
}

async fn config(all: &Operations, op: &str, given: &Value) -> Outcome {
    let client = all.client(given).await?;
    match op {
        "set_config" => {
            let (key, value) = (required(given, "key")?, required(given, "value")?);
            done(client.set_config(key, value).await)
        }
        "get_config" => Ok(json!({"value": client.get_config(required(given, "key")?).await?})),
        "set_config_all" => {
            let entries = given["entries"].as_object().into_iter().flatten();
            let texts = entries.filter_map(|(key, value)| Some((key, value.as_str()?)));
            done(client.set_config_all(texts).await)
        }
        "delete_config" => done(client.delete_config(required(given, "key")?).await),
        _ => {
            let entries = client.list_config(text(given, "prefix").unwrap_or_default()).await?;
            Ok(json!({"entries": entries}))
        }
    }
}

async fn access(all: &Operations, op: &str, given: &Value) -> Outcome {
    let client = all.client(given).await?;
    match op {
        "create_api_key" => create_api_key(all, given).await,
        "revoke_api_key" => done(client.revoke_api_key(required(given, "key_id")?).await),
        "list_api_keys" => {
            let keys = client.list_api_keys().await?;
            let shown = keys.iter().map(|key| {
                json!({
                    "key_id": key.key_id,
                    "name": key.name,
                    "expires_at_ms": key.expires_at.map(fields::epoch_ms),
                    "superadmin": key.superadmin,
                    "acl": fields::shown_acl(&key.acl),
                })
            });
            Ok(json!({"keys": shown.collect::<Vec<_>>()}))
        }
        "set_acl" => {
            let acl = acl_of(given)?;
            done(client.set_acl(required(given, "key_id")?, acl).await)
        }
        _ => {
            let acl = client.get_acl(required(given, "key_id")?).await?;
            let shown = fields::shown_acl(&acl.entries);
            Ok(json!({"acl": shown, "superadmin": acl.superadmin}))
        }
    }
}

async fn peek(all: &Operations, given: &Value) -> Outcome {
    let mut options = PeekOptions {
        from_position: number(given, "from_position").unwrap_or_default(),
        until_position: number(given, "until_position").unwrap_or_default(),
        fairness_key: owned(given, "fairness_key"),
        state: text(given, "state").map(fields::state).transpose()?,
        exclude_payload: given["exclude_payload"].as_bool().unwrap_or_default(),
        ..PeekOptions::default()
    };
    if let Some(limit) = short(given, "limit") {
        options.limit = limit;
    }
    let page = all.client(given).await?.peek(required(given, "queue")?, options).await?;
    Ok(json!({
        "messages": page.messages.iter().map(fields::peeked).collect::<Vec<_>>(),
        "next_position": page.next_position,
        "end_position": page.end_position,
    }))
}

async fn explain(all: &Operations, given: &Value) -> Outcome {
    let subject = match text(given, "message_id") {
        Some(message_id) => Subject::Message(message_id),
        None => Subject::FairnessKey(required(given, "fairness_key")?),
    };
    let found = all.client(given).await?.explain(required(given, "queue")?, subject).await?;
    let kinds = found.reasons.iter().map(|reason| reason.kind.and_then(fields::wait_kind));
    Ok(json!({
        "summary": found.summary,
        "reasons": kinds.collect::<Vec<_>>(),
        "fairness_key": found.fairness_key,
        "pending_count": found.pending_count,
        "ahead": found.ahead,
        "state": found.state.and_then(fields::state_name),
    }))
}

fn acl_of(given: &Value) -> Result<Vec<AclEntry>, Failure> {
    fields::list(given, "acl").iter().map(fields::acl_entry).collect()
}

async fn delete_queue(all: &Operations, given: &Value) -> Outcome {
    let (client, queue) = (all.client(given).await?, required(given, "queue")?);
    let deleted = match given["keep_dead_letters"].as_bool() {
        Some(true) => client.delete_queue_keeping_dead_letters(queue).await?,
        _ => client.delete_queue(queue).await?,
    };
    Ok(json!({"messages": deleted.messages, "dead_letters": deleted.dead_letters}))
}

async fn list_throttles(all: &Operations, given: &Value) -> Outcome {
    let filter = ThrottleFilter {
        prefix: owned(given, "prefix").unwrap_or_default(),
        unset: given["unset"].as_bool().unwrap_or_default(),
        limit: short(given, "limit"),
    };
    let page = all.client(given).await?.list_throttles(filter).await?;
    let throttles: Vec<_> = page.throttles.iter().map(fields::throttle).collect();
    Ok(json!({"throttles": throttles, "total_count": page.total_count}))
}

async fn create_api_key(all: &Operations, given: &Value) -> Outcome {
    let options = ApiKeyOptions {
        name: required(given, "name")?.to_owned(),
        acl: acl_of(given)?,
        expires_at: ms(given, "expires_at_ms").map(|since| UNIX_EPOCH + since),
        superadmin: given["superadmin"].as_bool().unwrap_or_default(),
    };
    let key = all.client(given).await?.create_api_key(options).await?;
    Ok(json!({"key_id": key.key_id, "secret": key.secret}))
}

async fn list_queues(all: &Operations, given: &Value) -> Outcome {
    let queues = all.client(given).await?.list_queues().await?;
    let shown = queues.iter().map(|queue| {
        json!({
            "name": queue.name,
            "depth": queue.depth,
            "in_flight": queue.in_flight,
            "active_consumers": queue.active_consumers,
        })
    });
    Ok(json!({"queues": shown.collect::<Vec<_>>()}))
}

async fn stats(all: &Operations, given: &Value) -> Outcome {
    let stats = all.client(given).await?.stats(required(given, "queue")?, None).await?;
    Ok(json!({
        "depth": stats.depth,
        "in_flight": stats.in_flight,
        "delayed": stats.delayed,
        "active_consumers": stats.active_consumers,
    }))
}
