// SPDX-License-Identifier: AGPL-3.0-only
//! One message from a producer to a consumer.

use std::hash::{BuildHasher, RandomState};

use fila::{Client, EnqueueMessage, QueueSettings};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::var("FILA_ADDR").unwrap_or_else(|_| "127.0.0.1:5555".to_owned());
    let client = Client::connect(target).await?;
    let queue = format!("quickstart-{:016x}", RandomState::new().hash_one(0));
    client.create_queue(&queue, QueueSettings::default()).await?;

    let message = EnqueueMessage::new(&queue, "hello").header("tenant", "acme");
    let message_id = client.enqueue(message).await?;
    println!("enqueued {message_id}");

    let consumer = client.consume(&queue).await?;
    if let Some(message) = consumer.next().await.transpose()? {
        println!("received '{}' of {}", message.text()?, message.headers["tenant"]);
        message.ack().await?;
    }
    consumer.close().await;

    client.delete_queue(&queue).await?;
    client.close().await;
    Ok(())
}
