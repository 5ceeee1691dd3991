// SPDX-License-Identifier: AGPL-3.0-only
//! Connections as they come. Beyond the limit they are closed at once.

use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::connection;
use crate::figures::Place;
use crate::state::State;

/// While descriptors are short, accepting again at once would only keep a core busy.
const PAUSE: Duration = Duration::from_millis(50);

pub async fn listen(state: Rc<State>, listener: TcpListener, mut draining: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = draining.wait_for(|&now| now) => return,
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let most = state.settings.max_connections;
        match Place::take(&state.figures, |figures| &figures.connections, most) {
            Some(place) => {
                let run = connection::run(state.clone(), socket, draining.clone(), place);
                tokio::task::spawn_local(run);
            }
            None => state.figures.connections_refused.up(),
        }
    }
}
