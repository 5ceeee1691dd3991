// SPDX-License-Identifier: AGPL-3.0-only
//! A worker that runs handlers side by side: failures are retried, hopeless ones dead-lettered.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use fila::{
    Client, ConsumeMessage, EnqueueMessage, EventKind, HandlerError, QueueSettings, ReceiveOptions,
};
use tokio::sync::mpsc;

const MESSAGES: usize = 20;
const HANDLERS: u32 = 5;

/// What a real worker does with a message; this one cannot stand the number 13.
async fn handle(message: ConsumeMessage) -> Result<(), HandlerError> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    if message.payload == "13" { Err("unlucky number".into()) } else { Ok(()) }
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

    let (settled, mut news) = mpsc::unbounded_channel();
    let worker = client.worker(&queue, handle).concurrency(HANDLERS).on_event(move |event| {
        // Nobody listens any more once all is done.
        let _ = settled.send(event.kind);
    });
    // A service would run until a signal comes: `worker.run_until(tokio::signal::ctrl_c())`.
    let all_done = async {
        let (mut acked, mut nacked) = (0, 0);
        while acked < MESSAGES - 1 || nacked < 2 {
            match news.recv().await {
                Some(EventKind::Acked) => acked += 1,
                Some(EventKind::Nacked) => nacked += 1,
                _ => {}
            }
        }
    };
    worker.run_until(all_done).await?;

    let options = ReceiveOptions { wait: Duration::from_secs(2), ..Default::default() };
    let letters = client.receive(&dead_letters, options).await?;
    let letter = letters.first().ok_or("there is no dead letter")?;
    println!("{} messages were processed", MESSAGES - 1);
    println!("message {} is a dead letter: {}", letter.text()?, letter.last_error);
    letter.ack().await?;
    client.delete_queue(&queue).await?;
    client.close().await;
    Ok(())
}
