//! Runs the scripted upstream as a process: flags in, one line with its address out.
//!
//! This file holds only the process; the server itself is `server.rs`.

#[path = "server.rs"]
mod server;

use std::time::Duration;

use clap::Parser;
use server::{Options, Server};

const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Parser)]
#[command(about = "An OpenAI-shaped server on loopback: answers from scripts, judges strictly")]
struct Flags {
    #[command(flatten)]
    options: Options,
    /// Exit after this many requests have ended, instead of at Ctrl-C.
    #[arg(long)]
    exit_after: Option<usize>,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut flags = Flags::parse();
    flags.options.wait_limit = A_YEAR;
    let faults = std::mem::take(&mut flags.options.faults);
    let server = Server::start(flags.options).await?;
    let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
    server
        .queue_faults(&faults)
        .map_err(|problem| std::io::Error::new(std::io::ErrorKind::InvalidInput, problem))?;
    println!("listening on {}", server.base_url());
    let ended = async {
        match flags.exit_after {
            Some(count) => {
                server
                    .wait_for(|log| log.iter().filter(|seen| seen.ended()).count() >= count)
                    .await;
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = ended => {}
        signalled = tokio::signal::ctrl_c() => signalled?,
    }
    server.release();
    let served = server.requests().len();
    eprintln!("{served} requests over {} connections", server.connections());
    server.stop().await;
    Ok(())
}
