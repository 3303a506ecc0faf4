// The compiler takes functions without a body, such as those of main.go that are linked by name,
// only where a package has an assembly file.
