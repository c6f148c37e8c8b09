"""What tests share: objects, fakes of what the code under test talks to, one way to wait."""
