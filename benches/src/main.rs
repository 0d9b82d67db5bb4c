//! What winddown costs, beside what others cost, in one run.
//!
//! ```text
//! cargo run --release                        the whole table
//! cargo run --release -- --quick             with few rounds, and without the largest sizes
//! cargo run --release -- --only WORD         the rows of operations that have the word in their titles
//! cargo run --release -- --sockets           requests over sockets alone
//! cargo run --release -- --worker            the queue worker alone
//! cargo run --release -- once OP K [THREADS] does one operation K times: the difference of two runs under callgrind is its price
//! ```
//!
//! Times drift from run to run, so that they are printed as ratios and judged but never fail the run. Instruction counts are
//! repeatable; `./ir` asserts them.

mod enter;
mod heap;
mod http_layer;
mod jobs;
mod measure;
mod poll;
mod sockets;
mod stop;

use std::process::ExitCode;

use measure::Row;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => table(false),
        ["--quick"] => table(true),
        ["--only", word] => {
            rows().iter().filter(|row| row.title.contains(word)).for_each(|row| _ = row.print(25));
            ExitCode::SUCCESS
        }
        ["--sockets"] => {
            sockets::print(false);
            ExitCode::SUCCESS
        }
        ["--worker"] => {
            jobs::print_worker(false);
            ExitCode::SUCCESS
        }
        // What `--sockets` starts.
        ["serve", way] => sockets::serve(way),
        ["once", name, times, ref threads @ ..] => {
            let threads = threads.first().map_or(Ok(1), |n| n.parse());
            match (rows().iter().flat_map(|row| &row.ops).find(|op| op.name == name), times.parse(), threads)
            {
                (Some(op), Ok(times), Ok(threads)) => {
                    measure::once(&*(op.make)(), times, threads);
                    ExitCode::SUCCESS
                }
                _ => usage(),
            }
        }
        _ => usage(),
    }
}

/// The rows that are one operation, done again and again.
fn rows() -> Vec<Row> {
    vec![
        enter::row(),
        poll::pending(),
        poll::wrapped(),
        poll::asked(),
        jobs::row(),
        http_layer::row(),
        http_layer::empty(),
    ]
}

fn table(quick: bool) -> ExitCode {
    let rounds = if quick { 5 } else { 25 };
    let mut missed = 0;
    for row in rows() {
        missed += row.print(rounds);
    }
    missed += stop::print(quick);
    missed += jobs::print(quick);
    missed += jobs::print_worker(quick);
    sockets::print(quick);
    println!(
        "\n{}",
        if missed == 0 {
            "every target is met".into()
        } else {
            format!("{missed} targets MISSED in this run")
        }
    );
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: winddown-bench [--quick | --only WORD | --sockets | --worker | once OP TIMES [THREADS]]\noperations:"
    );
    for op in rows().iter().flat_map(|row| &row.ops) {
        eprintln!("  {}", op.name);
    }
    ExitCode::from(2)
}
