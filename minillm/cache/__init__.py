"""Where K and V are kept between steps."""
