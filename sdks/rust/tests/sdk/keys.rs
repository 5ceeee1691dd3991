// SPDX-License-Identifier: AGPL-3.0-only
//! API keys that a function gives, and the layers that others put around calls.

use std::sync::{Arc, Mutex};

use fila::tonic::service::InterceptorLayer;
use fila::tonic::{Code, Request, Status};
use fila::{Client, EnqueueMessage, ErrorKind};

use crate::broker::{Broker, frame};
use crate::proto;

/// A client whose key can be changed, and the place to do that.
async fn with_keys(broker: &Broker) -> (Client, Arc<Mutex<Result<&'static str, &'static str>>>) {
    let key = Arc::new(Mutex::new(Ok("first")));
    let given = Arc::clone(&key);
    let builder = Client::builder().target(broker.target());
    let client = builder.api_key_from(move || given.lock().unwrap().map(str::to_owned));
    (client.connect().await.unwrap(), key)
}

fn keys_of(calls: &[crate::broker::Seen]) -> Vec<String> {
    calls.iter().map(|call| call.metadata["authorization"].clone()).collect()
}

async fn enqueue(client: &Client) -> fila::Result<String> {
    client.enqueue(EnqueueMessage::new("orders", "a")).await
}

#[tokio::test]
async fn a_function_is_asked_for_the_key_of_each_call() {
    let broker = Broker::start().without_pipelines();
    broker.answer("GetConfig", proto::GetConfigResponse::default());
    broker.answer("Consume", frame(&["a"]));
    let (client, key) = with_keys(&broker).await;
    client.get_config("a").await.unwrap();
    *key.lock().unwrap() = Ok("second");
    client.get_config("a").await.unwrap();
    client.consume("orders").await.unwrap().next().await.unwrap().unwrap();
    let keys = [broker.calls("GetConfig"), broker.calls("Consume")].concat();
    assert_eq!(keys_of(&keys), ["Bearer first", "Bearer second", "Bearer second"]);
}

#[tokio::test]
async fn another_key_opens_another_pipeline() {
    let broker = Broker::start();
    let (client, key) = with_keys(&broker).await;
    enqueue(&client).await.unwrap();
    enqueue(&client).await.unwrap();
    *key.lock().unwrap() = Ok("second");
    enqueue(&client).await.unwrap();
    enqueue(&client).await.unwrap();
    assert_eq!(keys_of(&broker.pipelines()), ["Bearer first", "Bearer second"]);
    let calls = broker.calls("EnqueueBatch");
    assert!(calls.iter().all(|call| call.is_piped));
    let second = "Bearer second".to_owned();
    assert_eq!(keys_of(&calls)[2..], [second.clone(), second]);
}

#[tokio::test]
async fn what_was_asked_under_the_old_key_is_still_answered() {
    let broker = Broker::start();
    let go = Arc::new(tokio::sync::Notify::new());
    let may_go = Arc::clone(&go);
    broker.on("EnqueueBatch", move |seen, out| {
        let may_go = Arc::clone(&may_go);
        async move {
            if seen.metadata["authorization"] == "Bearer first" {
                may_go.notified().await;
            }
            out.send(&crate::broker::stored(&seen));
        }
    });
    let (client, key) = with_keys(&broker).await;
    let first = tokio::spawn({
        let client = client.clone();
        async move { enqueue(&client).await }
    });
    broker.until(|broker| broker.calls("EnqueueBatch").len() == 1).await;
    *key.lock().unwrap() = Ok("second");
    enqueue(&client).await.unwrap();
    go.notify_one();
    first.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_the_function_fails_with_fails_the_call() {
    let broker = Broker::start();
    broker.answer("GetConfig", proto::GetConfigResponse::default());
    let (client, key) = with_keys(&broker).await;
    *key.lock().unwrap() = Err("the vault is shut");
    let mut many = client.enqueue_many([EnqueueMessage::new("orders", "a")]).await.unwrap();
    for error in [
        enqueue(&client).await.unwrap_err(),
        many.remove(0).unwrap_err(),
        client.get_config("a").await.unwrap_err(),
        client.consume("orders").await.unwrap().next().await.unwrap().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert_eq!(error.to_string(), "api_key gave none: the vault is shut");
        assert!(std::error::Error::source(&error).is_some());
    }
    assert!(broker.seen().is_empty());
    *key.lock().unwrap() = Ok("with space");
    assert_eq!(enqueue(&client).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    *key.lock().unwrap() = Ok("good");
    enqueue(&client).await.unwrap();
}

#[tokio::test]
async fn a_function_that_panics_fails_the_call() {
    let broker = Broker::start();
    let asked = || -> Result<String, std::io::Error> { panic!("as this test wants") };
    let builder = Client::builder().target(broker.target()).api_key_from(asked);
    let error = enqueue(&builder.connect().await.unwrap()).await.unwrap_err();
    assert_eq!(error.to_string(), "api_key gave none: it panicked");
}

#[tokio::test]
async fn no_key_that_was_given_is_shown_by_an_error() {
    let broker = Broker::start();
    let (client, key) = with_keys(&broker).await;
    enqueue(&client).await.unwrap();
    *key.lock().unwrap() = Ok("second");
    broker.refuse("GetConfig", Code::Unauthenticated, "neither first nor second", None);
    let error = client.get_config("a").await.unwrap_err();
    assert_eq!(error.to_string(), "neither [redacted] nor [redacted]");
}

#[tokio::test]
async fn an_interceptor_is_passed_through() {
    fn tagged(mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("tenant", "acme".parse().expect("ascii"));
        Ok(request)
    }
    let broker = Broker::start();
    broker.answer("GetConfig", proto::GetConfigResponse::default());
    let builder = Client::builder().target(broker.target()).layer(InterceptorLayer::new(tagged));
    let client = builder.connect().await.unwrap();
    client.get_config("a").await.unwrap();
    enqueue(&client).await.unwrap();
    for call in broker.seen() {
        assert_eq!(call.metadata["tenant"], "acme", "{call:?}");
    }
    assert_eq!(broker.seen().len(), 2);
}

#[tokio::test]
async fn the_last_layer_is_the_outermost_and_may_refuse() {
    let broker = Broker::start();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noting = |name: &'static str| {
        let seen = Arc::clone(&seen);
        InterceptorLayer::new(move |request: Request<()>| {
            seen.lock().unwrap().push(name);
            let is_last = name == "inner";
            if is_last { Err(Status::permission_denied("not today")) } else { Ok(request) }
        })
    };
    let builder = Client::builder().target(broker.target());
    let builder = builder.layer(noting("inner")).layer(noting("outer"));
    let error = builder.connect().await.unwrap().get_config("a").await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::PermissionDenied, "not today"));
    assert_eq!(*seen.lock().unwrap(), ["outer", "inner"]);
    assert!(broker.seen().is_empty());
}
