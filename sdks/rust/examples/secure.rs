// SPDX-License-Identifier: AGPL-3.0-only
//! TLS, a client certificate and an API key; each only if its variable is set.
//!
//! `FILA_CA` names the CA's certificate, `FILA_CERT` and `FILA_KEY` the client's own,
//! `FILA_API_KEY` the key.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use fila::{Client, EnqueueMessage, ErrorKind, QueueSettings, ReceiveOptions, TlsOptions};

async fn connect() -> fila::Result<Client> {
    let variable = |name| std::env::var(name).ok();
    let target = variable("FILA_ADDR").unwrap_or_else(|| "127.0.0.1:5555".to_owned());
    let mut builder = Client::builder().target(target);
    let tls = TlsOptions {
        ca: variable("FILA_CA").map(Into::into),
        cert: variable("FILA_CERT").map(Into::into),
        key: variable("FILA_KEY").map(Into::into),
        server_name: None,
    };
    if tls.ca.is_some() || tls.cert.is_some() {
        builder = builder.tls(tls);
    }
    if let Some(key) = variable("FILA_API_KEY") {
        builder = builder.api_key(key);
    }
    builder.connect().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = connect().await?;
    let queue = format!("secure-{:016x}", RandomState::new().hash_one(0));
    if let Err(error) = client.create_queue(&queue, QueueSettings::default()).await {
        return Err(match error.kind() {
            ErrorKind::Unauthenticated => {
                format!("the broker does not accept the API key: {error}").into()
            }
            ErrorKind::Unavailable => {
                format!("no broker, or none with the right certificate: {error}").into()
            }
            _ => error.into(),
        });
    }

    client.enqueue(EnqueueMessage::new(&queue, "for your eyes only")).await?;
    let options = ReceiveOptions { wait: Duration::from_secs(2), ..Default::default() };
    for message in client.receive(&queue, options).await? {
        println!("received '{}'", message.text()?);
        message.ack().await?;
    }
    client.delete_queue(&queue).await?;
    client.close().await;
    Ok(())
}
