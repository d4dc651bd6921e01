//! PostgreSQL server for tests: the one that `WEIR_TEST_POSTGRES` names, a local one, or one that
//! the tests start. Each test has its own schema, which is dropped with it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use weir_store::Store;

use super::places::Place;
use crate::eventually::eventually;
use crate::folder::Folder;

/// Default URL of a local server.
const USUAL: &str = "postgres://postgres@127.0.0.1:5432/postgres";
/// Timeout for a server's answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the server's URL.
pub fn server() -> &'static str {
    static SERVER: OnceLock<Result<String, String>> = OnceLock::new();
    let found = SERVER.get_or_init(|| match std::env::var("WEIR_TEST_POSTGRES") {
        Ok(url) => Ok(url),
        Err(_) if answers(USUAL) => Ok(USUAL.to_owned()),
        Err(_) => start(),
    });
    found.as_ref().unwrap_or_else(|why| panic!("no PostgreSQL: {why}"))
}

/// Runs `work` with a connection, on its own thread and runtime.
fn with_client<T: Send + 'static, W>(
    url: &str,
    work: impl FnOnce(Client) -> W + Send + 'static,
) -> Result<T, String>
where
    W: Future<Output = Result<T, tokio_postgres::Error>>,
{
    let url = url.to_owned();
    apart(move || async move { connected(&url, work).await })
}

/// Runs `work` on its own thread and runtime.
fn apart<T: Send + 'static, W>(work: impl FnOnce() -> W + Send + 'static) -> T
where
    W: Future<Output = T>,
{
    let done = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(work())
    });
    done.join().expect("it does not panic")
}

async fn connected<T, W>(url: &str, work: impl FnOnce(Client) -> W) -> Result<T, String>
where
    W: Future<Output = Result<T, tokio_postgres::Error>>,
{
    let asked = async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        work(client).await
    };
    let answered = tokio::time::timeout(PATIENCE, asked).await;
    answered.map_err(|_| "no answer".to_owned())?.map_err(|error| format!("{error:?}"))
}

async fn ping(client: Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("SELECT 1").await
}

fn answers(url: &str) -> bool {
    with_client(url, ping).is_ok()
}

/// Starts a server that ends with the tests' process.
fn start() -> Result<String, String> {
    static RUNNING: OnceLock<(Child, Folder)> = OnceLock::new();
    let programs = programs().ok_or("nothing answers at 127.0.0.1:5432, and there is no initdb")?;
    let folder = Folder::new();
    let data = folder.file("data");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    drop(listener);
    // The end of the input stops the server, however this process ends.
    let script = format!(
        "set -e; {initdb} -D {data} -U postgres -A trust -E UTF8 --no-sync >&2
         {postgres} -D {data} -p {port} -c listen_addresses=127.0.0.1 \
         -c unix_socket_directories={data} -c fsync=off -c max_connections=200 >&2 & server=$!
         cat; kill -INT $server; wait $server; rm -rf {data}",
        initdb = programs.join("initdb").display(),
        postgres = programs.join("postgres").display(),
        data = data.display(),
    );
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|it| it.stdout == b"0\n");
    let mut command = match is_root {
        // PostgreSQL refuses to run as root.
        true => {
            let given = Command::new("chown").arg("postgres").arg(folder.file("")).status();
            given.map_err(|error| error.to_string())?;
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--", "sh", "-c", &script]);
            command
        }
        false => {
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            command
        }
    };
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().map_err(|error| error.to_string())?;
    let (child, _) = RUNNING.get_or_init(|| (child, folder));
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    let mut input = child.stdin.as_ref().ok_or("it has no input")?;
    let address = url.clone();
    let began = apart(move || async move {
        let look = async || match connected(&address, ping).await {
            // If it has ended, nothing reads the input.
            Err(_) => input.write_all(b"\n").map(|()| false),
            Ok(()) => Ok(true),
        };
        eventually(PATIENCE, look, |answers| !matches!(answers, Ok(false))).await
    });
    began.map_err(|_| "the server that was started has ended".to_owned())?;
    Ok(url)
}

/// Returns the folder of the server's programs.
fn programs() -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.extend(std::env::split_paths(&on_path));
    let is_whole = |folder: &PathBuf| {
        ["initdb", "postgres"].iter().all(|program| Path::new(folder).join(program).is_file())
    };
    folders.into_iter().find(is_whole)
}

/// Schema of one test.
pub struct Postgres {
    schema: String,
}

impl Postgres {
    /// Returns the URL of the schema's tables.
    pub fn url(&self) -> String {
        self.url_at(server())
    }

    /// Returns the same URL with another address of the server.
    pub fn url_at(&self, server: &str) -> String {
        let joint = if server.contains('?') { '&' } else { '?' };
        // No test depends on the state after a server's loss of power.
        let options = "%20-csynchronous_commit%3Doff";
        format!("{server}{joint}options=-csearch_path%3D{}{options}", self.schema)
    }

    /// Runs statements outside the stores.
    pub fn run(&self, sql: &str) {
        let sql = sql.to_owned();
        with_client(&self.url(), |client| async move { client.batch_execute(&sql).await })
            .expect("it can be run");
    }

    /// Returns the number that a statement selects.
    pub fn number(&self, sql: &str) -> i64 {
        let sql = sql.to_owned();
        let asked = |client: Client| async move {
            client.query_one(&sql, &[]).await.map(|row| row.get::<_, i64>(0))
        };
        with_client(&self.url(), asked).expect("it gives one")
    }
}

impl Place for Postgres {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let schema = format!("weir_test_{}_{number}", std::process::id());
        let sql = format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}");
        with_client(server(), |client| async move { client.batch_execute(&sql).await })
            .expect("a schema");
        Self { schema }
    }

    fn handle(&self) -> Store {
        Store::connect(&self.url()).expect("the schema is there")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let sql = format!("DROP SCHEMA {} CASCADE", self.schema);
        // A schema that cannot be dropped has a name that shows its origin.
        let _ = with_client(server(), |client| async move { client.batch_execute(&sql).await });
    }
}
