//! Report as one self-contained page: recall against bill, sizes over turns, all rows.

use std::fmt::Write as _;

use super::report::{Report, Run, Single};
use super::table;
use super::tally::{MEASURES, Recall, Row};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8886;--soft:#888}\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}p{max-width:45rem}\
svg{width:100%;height:auto}text{font:11px system-ui,sans-serif;fill:currentColor}\
.axis{stroke:var(--line)}.full{stroke:var(--soft);fill:none;stroke-dasharray:3 3}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.15rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}tr.all{font-weight:600}\
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(22rem,1fr));gap:1rem}\
figure{margin:0}figcaption{font-size:.85rem}";

/// Colours that most people can distinguish on light and dark backgrounds.
const COLOURS: [&str; 8] =
    ["#2a7fd4", "#d9822b", "#2e9e6b", "#c4487a", "#8a63d2", "#8f8a1f", "#b0584a", "#4a9aa8"];
/// Maximum number of conversations in the size charts.
const MOST_CHARTS: usize = 8;

/// Renders the page.
pub fn page(report: &Report) -> String {
    let mut policies: Vec<&str> = Vec::new();
    for run in &report.runs {
        if !policies.contains(&run.total.policy.as_str()) {
            policies.push(&run.total.policy);
        }
    }
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width\"><title>weir replay</title>\
         <style>{STYLE}</style><h1>weir replay</h1>"
    );
    page.push_str("<p>");
    for (place, policy) in policies.iter().enumerate() {
        let (colour, name) = (colour(place), escaped(policy));
        let _ = write!(page, "<span style=\"color:{colour}\">&#9679;</span> {name} &ensp;");
    }
    page.push_str("</p><h2>Recall against bill</h2>");
    page.push_str(
        "<p>The bill is of all input, with a prefix cache, relative to sending everything. Filled: \
         deep values that can still be read. Hollow: with their context.</p>",
    );
    page.push_str(&scatter(report, &policies));
    page.push_str("<h2>Size over turns</h2>");
    page.push_str(
        "<p>Tokens of each request as sent, at the first budget; dashed, all of it. The longest \
         conversation of each source.</p><div class=charts>",
    );
    sizes(report, &policies, &mut page);
    page.push_str("</div><h2>Figures</h2><div class=scroll>");
    rows(&report.rows(true), &mut page);
    page.push_str("</div></html>\n");
    page
}

fn colour(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Plots deep recall and recall with context over the bill.
fn scatter(report: &Report, policies: &[&str]) -> String {
    let (width, height, margin) = (760.0, 380.0, 40.0);
    let billed = report.runs.iter().filter_map(|run| run.total.billed_per_none);
    let most = billed.fold(1.0_f64, f64::max) * 1.05;
    let x = |bill: f64| margin + bill / most * (width - 2.0 * margin);
    let y = |recall: f64| height - margin - recall * (height - 2.0 * margin);
    let mut svg = format!("<svg viewBox=\"0 0 {width} {height}\" role=img>");
    for step in 0..=5 {
        let share = f64::from(step) / 5.0;
        let (at, bill) = (y(share), share * most);
        let _ = write!(
            svg,
            "<line class=axis x1={margin} x2={:.1} y1={at:.1} y2={at:.1} />\
             <text x=4 y={:.1}>{share:.1}</text><text x={:.1} y={:.1}>{bill:.2}</text>",
            width - margin,
            at + 4.0,
            x(bill) - 10.0,
            height - 18.0,
        );
    }
    for run in &report.runs {
        let row = &run.total;
        let place = policies.iter().position(|policy| *policy == row.policy).unwrap_or(0);
        let Some(bill) = row.billed_per_none else { continue };
        let [deep, context] =
            [Recall::Deep, Recall::Context].map(|of| row.recall()[of as usize].value);
        for (recall, fill) in [(deep, colour(place)), (context, "none")] {
            let Some(recall) = recall else { continue };
            let title = format!("{} at {}: {recall:.3} for {bill:.3}", row.policy, row.budget);
            let _ = write!(
                svg,
                "<circle cx={:.1} cy={:.1} r=5 fill=\"{fill}\" stroke=\"{}\" stroke-width=2>\
                 <title>{}</title></circle>",
                x(bill),
                y(recall),
                colour(place),
                escaped(&title),
            );
        }
        if let Some(deep) = deep {
            let (at, up) = (x(bill) + 8.0, y(deep) - 6.0);
            let _ = write!(svg, "<text x={at:.1} y={up:.1}>{}</text>", escaped(&row.budget));
        }
    }
    svg + "</svg>"
}

/// Plots a chart for the longest conversation of each source.
fn sizes<'r>(report: &'r Report, policies: &[&str], page: &mut String) {
    let Some(first) = report.runs.first() else { return };
    let mut longest: Vec<&Single> = Vec::new();
    for source in &first.sources {
        let own =
            first.conversations.iter().filter(|single| single.figures.source == source.source);
        longest.extend(own.max_by_key(|single| single.last_request_tokens));
    }
    for single in longest.into_iter().take(MOST_CHARTS) {
        let runs = report.runs.iter().filter(|run| run.total.budget == first.total.budget);
        let same = |run: &'_ Run| run.conversations.iter().position(|own| own.id == single.id);
        let line = |run: &'r Run| {
            let place = policies.iter().position(|policy| *policy == run.total.policy)?;
            Some((place, &run.conversations[same(run)?]))
        };
        let lines: Vec<(usize, &Single)> = runs.filter_map(line).collect();
        chart(single, &lines, page);
    }
}

fn chart(single: &Single, lines: &[(usize, &Single)], page: &mut String) {
    let (width, height) = (360.0, 160.0);
    let most = single.sizes.iter().map(|(full, _)| *full).max().unwrap_or(1).max(1) as f64;
    let across = single.sizes.len().saturating_sub(1).max(1) as f64;
    let points = |sizes: &mut dyn Iterator<Item = u64>| {
        let mut points = String::new();
        for (turn, size) in sizes.enumerate() {
            let x = turn as f64 / across * width;
            let y = height - (size as f64 / most).min(1.0) * (height - 14.0);
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        points
    };
    let full = points(&mut single.sizes.iter().map(|(full, _)| *full));
    let _ = write!(
        page,
        "<figure><svg viewBox=\"0 0 {width} {height}\" role=img><polyline class=full \
         points=\"{full}\" /><text x=2 y=11>{most} tokens</text>"
    );
    for (place, line) in lines {
        let sent = points(&mut line.sizes.iter().map(|(_, sent)| *sent));
        let colour = colour(*place);
        let _ = write!(
            page,
            "<polyline points=\"{sent}\" fill=none stroke=\"{colour}\" stroke-width=1.5 />"
        );
    }
    let source = single.figures.source.as_deref().unwrap_or_default();
    let (id, source) = (escaped(&single.id), escaped(source));
    let turns = single.sizes.len();
    let _ =
        write!(page, "</svg><figcaption>{id}, {turns} requests ({source})</figcaption></figure>");
}

fn rows(rows: &[&Row], page: &mut String) {
    page.push_str("<table><tr><th>policy<th>budget<th>source");
    for title in table::heads() {
        let _ = write!(page, "<th>{}", escaped(title));
    }
    for row in rows {
        let class = if row.source.is_none() { " class=all" } else { "" };
        let _ = write!(page, "<tr{class}>");
        let source = row.source.as_deref().unwrap_or("all");
        for cell in [&*row.policy, &*row.budget, source] {
            let _ = write!(page, "<td>{}", escaped(cell));
        }
        for cell in table::figures(row) {
            let _ = write!(page, "<td>{}", escaped(&cell));
        }
    }
    page.push_str("</table><p>");
    for (_, title, meaning) in MEASURES {
        let _ = write!(page, "<b>{title}</b>: {meaning}. ");
    }
    page.push_str("</p>");
}
