// SPDX-License-Identifier: AGPL-3.0-only
//! Many messages at a time, both ways: what a load job or a pipeline does.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use fila::{Client, EnqueueMessage, QueueSettings, ReceiveOptions};

const MESSAGES: usize = 10_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::var("FILA_ADDR").unwrap_or_else(|_| "127.0.0.1:5555".to_owned());
    let client =
        Client::builder().target(target).timeout(Duration::from_secs(30)).connect().await?;
    let queue = format!("batch-{:016x}", RandomState::new().hash_one(0));
    client.create_queue(&queue, QueueSettings::default()).await?;

    let start = Instant::now();
    // With a key for each message the client may send a request again when the broker was away.
    let messages = (0..MESSAGES).map(|n| {
        EnqueueMessage::new(&queue, vec![b'x'; 256])
            .header("row", n.to_string())
            .idempotency_key(format!("{queue}-{n}"))
    });
    let results = client.enqueue_many(messages).await?;
    let stored = results.iter().filter(|result| result.is_ok()).count();
    println!("stored {} messages at {}/s", grouped(stored), rate(stored, start));

    let start = Instant::now();
    let mut done = 0;
    loop {
        let options = ReceiveOptions { max_messages: 1_000, ..Default::default() };
        let messages = client.receive(&queue, options).await?;
        if messages.is_empty() {
            break;
        }
        let outcomes = client.ack_many(&messages).await?;
        done += outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    }
    println!("drained {} messages at {}/s", grouped(done), rate(done, start));

    client.delete_queue(&queue).await?;
    client.close().await;
    Ok(())
}

fn rate(count: usize, start: Instant) -> String {
    let nanos = start.elapsed().as_nanos().max(1);
    grouped(usize::try_from(count as u128 * 1_000_000_000 / nanos).unwrap_or(usize::MAX))
}

/// A number with a comma before every third digit from the right.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
