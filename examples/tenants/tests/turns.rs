//! The turns, limits and rates of the tenants on virtual time, and the program.

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use requeue_testkit::explore::explore;
use tenants::{Report, TENANTS, add, open, work};
use tokio::time::Instant;

fn exports(tenant: &str, number: usize) -> Vec<String> {
    (1..=number).map(|export| format!("{tenant}/{export}")).collect()
}

#[test]
fn a_thousand_exports_of_one_tenant_do_not_delay_three_of_another() {
    explore(1, |world| async move {
        let queue = open(&world.store().await?).await?;
        add(&queue, &exports("acme", 1000)).await?;
        add(&queue, &exports("zeta", 3)).await?;
        let report = Report::default();
        work(queue, report.clone()).await;

        let report = report.lock();
        assert_eq!(report["acme"].starts.len(), 1000);
        // Two tenants take turns, so every second start is for zeta, while it has exports.
        assert_eq!(report["zeta"].starts.len(), 3);
        assert!(report["zeta"].starts.iter().all(|&start| start <= 6), "{:?}", report["zeta"]);
        for tenant in TENANTS.iter().filter(|tenant| tenant.name != "trial") {
            assert!(report[tenant.name].most_running <= tenant.limit, "{tenant:?}");
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    });
}

#[test]
fn a_rate_delays_only_its_tenant() {
    explore(1, |world| async move {
        let queue = open(&world.store().await?).await?;
        add(&queue, &exports("trial", 11)).await?;
        add(&queue, &exports("acme", 100)).await?;
        let (report, begin) = (Report::default(), Instant::now());
        work(queue, report.clone()).await;

        // The first export starts immediately, and each of the others 200 ms after the previous one.
        let took = begin.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(4), "{took:?}");
        let report = report.lock();
        // The exports of acme, of which four run at the same time, are complete after 125 ms.
        assert!(report["acme"].starts.iter().all(|&start| start <= 102), "{:?}", report["acme"]);
        assert_eq!(report["acme"].most_running, 4);
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    });
}

#[test]
fn the_program_runs_what_it_is_given_and_names_what_is_wrong() -> std::io::Result<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}/tenants.db", directory.path().display());
    for (exports, code, text) in [
        (["zeta/1", "acme/7"], 0, "zeta         1"),
        (["zeta/1", "nobody/1"], 1, "\"nobody/1\": unknown tenant; use one of acme, trial, zeta"),
        (["zeta/1", "zeta"], 1, "invalid export \"zeta\": use TENANT/EXPORT, such as acme/17"),
        (["zeta/1", "/1"], 1, "invalid export \"/1\": use TENANT/EXPORT, such as acme/17"),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tenants")).arg(&url).args(exports).output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(text), "{said}");
    }
    Ok(())
}
