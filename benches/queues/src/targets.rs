//! What was promised, and whether this run kept it.

#[derive(Default)]
pub struct Targets {
    lines: Vec<String>,
    missed: usize,
    none: usize,
}

// === impl Targets ===

impl Targets {
    pub fn at_least(&mut self, what: &str, found: f64, least: f64) {
        self.judge(found >= least, format!("{what}: {found:.2} ≥ {least}"));
    }

    pub fn at_most(&mut self, what: &str, found: f64, most: f64) {
        self.judge(found <= most, format!("{what}: {found:.2} ≤ {most}"));
    }

    /// There is nothing to judge.
    pub fn none(&mut self, what: &str, why: &str) {
        self.none += 1;
        self.lines.push(format!("{:<6}  {what}: {why}", "none"));
    }

    fn judge(&mut self, met: bool, line: String) {
        self.missed += usize::from(!met);
        self.lines.push(format!("{:<6}  {line}", if met { "met" } else { "MISSED" }));
    }

    pub fn print(&self) {
        println!("\nTargets");
        self.lines.iter().for_each(|line| println!("{line}"));
        match (self.missed, self.none) {
            (0, 0) => println!("every target is met"),
            (0, none) => println!("every target is met, but for {none} that cannot be judged"),
            (missed, _) => println!("{missed} targets MISSED in this run"),
        }
    }
}
