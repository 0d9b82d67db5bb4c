//! What was promised, and whether this run kept it.

#[derive(Default)]
pub struct Targets {
    lines: Vec<String>,
    missed: usize,
}

// === impl Targets ===

impl Targets {
    pub fn at_least(&mut self, what: &str, found: f64, least: f64) {
        self.judge(found >= least, format!("{what}: {found:.2} ≥ {least}"));
    }

    pub fn at_most(&mut self, what: &str, found: f64, most: f64) {
        self.judge(found <= most, format!("{what}: {found:.2} ≤ {most}"));
    }

    fn judge(&mut self, met: bool, line: String) {
        self.missed += usize::from(!met);
        self.lines.push(format!("{:<6}  {line}", if met { "met" } else { "MISSED" }));
    }

    pub fn print(&self) {
        println!("\nTargets");
        self.lines.iter().for_each(|line| println!("{line}"));
        match self.missed {
            0 => println!("every target is met"),
            missed => println!("{missed} targets MISSED in this run"),
        }
    }
}
