module netstack-gro/benchmarks/harness

go 1.23
