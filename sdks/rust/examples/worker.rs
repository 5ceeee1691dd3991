// SPDX-License-Identifier: AGPL-3.0-only
//! A worker that runs handlers side by side: failures are retried, hopeless ones dead-lettered.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use fila::{
    Client, ConsumeMessage, ConsumeOptions, EnqueueMessage, Message, QueueSettings, ReceiveOptions,
};
use tokio::task::JoinSet;

const MESSAGES: usize = 20;
const HANDLERS: u32 = 5;

/// What a real worker does with a message; this one cannot stand the number 13.
async fn handle(message: &Message) -> Result<(), &'static str> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    if message.payload == b"13" { Err("unlucky number") } else { Ok(()) }
}

async fn settle(message: ConsumeMessage) -> fila::Result<()> {
    match handle(&message).await {
        Ok(()) => message.ack().await,
        Err(error) => message.nack(error).await,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::var("FILA_ADDR").unwrap_or_else(|_| "127.0.0.1:5555".to_owned());
    let client = Client::connect(target).await?;
    let queue = format!("worker-{:016x}", RandomState::new().hash_one(0));
    // The second failure of a message is its last.
    let settings = QueueSettings { max_attempts: Some(2), ..Default::default() };
    let dead_letters = client.create_queue(&queue, settings).await?;
    let messages = (0..MESSAGES).map(|n| EnqueueMessage::new(&queue, n.to_string()));
    for stored in client.enqueue_many(messages).await? {
        stored?;
    }

    // No more in flight than there are handlers: what waits should wait at the broker, where other
    // workers can have it. So the loop needs no limit of its own.
    let options = ConsumeOptions { max_in_flight: HANDLERS, ..Default::default() };
    let mut consumer = client.consume_with(&queue, options).await?;
    let mut handlers = JoinSet::new();
    while handlers.len() <= MESSAGES {
        // One of them comes twice.
        let Some(message) = consumer.next().await.transpose()? else { break };
        handlers.spawn(settle(message));
    }
    for settled in handlers.join_all().await {
        settled?;
    }
    consumer.close().await;

    let options = ReceiveOptions { wait: Duration::from_secs(2), ..Default::default() };
    let letters = client.receive(&dead_letters, options).await?;
    let letter = letters.first().ok_or("there is no dead letter")?;
    println!("{} messages were processed", MESSAGES - 1);
    let payload = String::from_utf8_lossy(&letter.payload);
    println!("message {payload} is a dead letter: {}", letter.last_error);
    letter.ack().await?;
    client.delete_queue(&queue).await?;
    client.close().await;
    Ok(())
}
