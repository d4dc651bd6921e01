//! A weir is killed after its budget was spent, and another one starts on its store at once: no
//! request gets through, from the first one on.

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use weir_store::Store;

use super::setting::{chat, set};
use crate::cli::{Serving, weir};
use crate::folder::Folder;
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{ask, bare};
use crate::store::places::{Place as _, Postgres};

const BUDGET: &str = "all/tokens/total";
const HEADER: &str = "authorization: Bearer k\r\n";

/// First requests to the new weir.
#[derive(Clone, Copy)]
enum First {
    Alone,
    Together,
    /// After a look at the budgets, which loads counters.
    AfterLook,
}

/// Place of the store.
enum Home {
    File(Folder),
    Server(Postgres),
}

impl Home {
    fn file() -> Self {
        Self::File(Folder::new())
    }

    fn server() -> Self {
        Self::Server(Postgres::new())
    }

    fn store(&self) -> Store {
        match self {
            Self::File(folder) => Store::open(&folder.file("weir.db")).expect("a file"),
            Self::Server(server) => server.handle(),
        }
    }

    /// Returns the weir that counts by the store's server, as a number; `None` in a file, whose lock ends
    /// with its process.
    fn leader(&self) -> Option<i64> {
        let Self::Server(server) = self else { return None };
        let sql = "SELECT hashtextextended(encode(value, 'hex'), 0) FROM weir_meta \
                   WHERE name = 'counting'";
        Some(server.number(sql))
    }

    fn serve(&self, upstream: &Server) -> Serving {
        let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream"]);
        command.arg(upstream.base_url()).env("WEIR_BUDGETS__WAIT_MS", "0");
        match self {
            Self::File(folder) => command.env("WEIR_STORE__PATH", folder.file("weir.db")),
            Self::Server(server) => {
                command.env_remove("WEIR_STORE__PATH").env("WEIR_STORE__URL", server.url())
            }
        };
        Serving::run(&mut command)
    }
}

/// Sends a request, and returns whether it was refused for its budget.
async fn is_refused(address: std::net::SocketAddr) -> bool {
    let answer = ask(address, chat(HEADER, 5, json!({}))).await;
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    answer.status() == 429 && body.contains("insufficient_quota")
}

async fn a_spent_budget_stays_spent(home: Home, first: First) {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let store = home.store();
    set(&store, BUDGET, "10000").await;
    let killed = home.serve(&upstream);
    assert_eq!(ask(killed.address, chat(HEADER, 50, json!({}))).await.status(), 200);
    // Another request is under way when the budget turns out to be spent.
    let headers = format!("{HEADER}x-upstream-fault: hold_after:1\r\n");
    let mut open = TcpStream::connect(killed.address).await.expect("weir listens");
    let request = chat(&headers, 20, json!({"stream": true, "max_tokens": 30}));
    open.write_all(request.as_bytes()).await.expect("weir reads");
    upstream.wait_for(|log| log.len() == 2).await;
    set(&store, BUDGET, "20").await;
    killed.signal("-KILL");
    assert_eq!(killed.ended(), None, "it was killed");
    upstream.release();

    let leader = home.leader();
    let next = home.serve(&upstream);
    match first {
        First::Alone => {}
        First::Together => {
            let mut together = JoinSet::new();
            (0..8).for_each(|_| drop(together.spawn(is_refused(next.address))));
            assert_eq!(together.join_all().await, [true; 8]);
        }
        First::AfterLook => {
            let look = ask(next.address, bare("GET", "/weir/v1/budgets", HEADER)).await;
            assert_eq!(look.status(), 200);
        }
    }
    assert!(is_refused(next.address).await);
    assert_eq!(home.leader(), leader, "it is refused before the killed weir counts as dead");
    assert_eq!(upstream.requests().len(), 2, "nothing was sent");
    set(&store, BUDGET, "10000").await;
    let ask = async || ask(next.address, chat(HEADER, 5, json!({}))).await.status();
    crate::eventually::eventually(crate::eventually::DEADLINE, ask, |status| *status == 200).await;
}

#[tokio::test]
async fn a_file_refuses_the_first_request() {
    a_spent_budget_stays_spent(Home::file(), First::Alone).await;
}

#[tokio::test]
async fn a_file_refuses_many_at_once() {
    a_spent_budget_stays_spent(Home::file(), First::Together).await;
}

#[tokio::test]
async fn a_file_refuses_after_a_look() {
    a_spent_budget_stays_spent(Home::file(), First::AfterLook).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn a_server_refuses_the_first_request() {
    a_spent_budget_stays_spent(Home::server(), First::Alone).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn a_server_refuses_many_at_once() {
    a_spent_budget_stays_spent(Home::server(), First::Together).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn a_server_refuses_after_a_look() {
    a_spent_budget_stays_spent(Home::server(), First::AfterLook).await;
}
